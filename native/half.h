// IEEE half precision in software, rounding to nearest even as the hardware conversions do.
#pragma once

#include <cstdint>
#include <cstring>

namespace wager {
namespace {

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    uint32_t bits;
    if (exponent == 0) {
        // Zero and subnormals: the value is mantissa * 2^-24, exact in single precision.
        const float magnitude = float(mantissa) * 0x1p-24f;
        std::memcpy(&bits, &magnitude, 4);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0);
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | uint16_t(bits >> 13 & 0x3ff);
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {
        // Subnormal halves: adding 0.5 aligns the wanted bits at the end of the significand, and
        // the addition does the rounding.
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, 4);
        return sign | uint16_t(bits - 0x3f000000);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | uint16_t((bits - 0x38000000) >> 13);
}

}  // namespace
}  // namespace wager
