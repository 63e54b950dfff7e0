#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace wager {
namespace {

constexpr uint8_t ZERO_WEIGHT = 128;
constexpr int LEVELS = 16;
constexpr int64_t MINIMA = 2 * LANES * 2;     // bytes from the scales of a pair to its minima

uint8_t* pair_start(uint8_t* panel, int64_t group, const PairLayout& pair) {
    return panel + group / 2 * pair.bytes();
}
uint8_t* group_start(uint8_t* panel, int64_t group, const PairLayout& pair) {
    return pair_start(panel, group, pair) + pair.head + group % 2 * pair.group;
}
uint8_t* scale_start(uint8_t* panel, int64_t group, const PairLayout& pair) {
    return pair_start(panel, group, pair) + group % 2 * (LANES * 2);
}

void put_half(uint8_t* at, int64_t lane, float value) {
    const uint16_t stored = float_to_half(value);
    std::memcpy(at + lane * 2, &stored, 2);
}
float get_half(const uint8_t* at, int64_t lane) {
    uint16_t stored;
    std::memcpy(&stored, at + lane * 2, 2);
    return half_to_float(stored);
}
float as_half(float value) { return half_to_float(float_to_half(value)); }

void put_f32(uint8_t* panel, int64_t lane, const float* row, int64_t k) {
    float* out = reinterpret_cast<float*>(panel) + lane;
    for (int64_t i = 0; i < k; ++i) out[i * LANES] = row[i];
}

// To the nearest, ties to even.
bool put_bf16(uint8_t* panel, int64_t lane, const float* row, int64_t k) {
    Bf16* out = reinterpret_cast<Bf16*>(panel) + lane;
    bool finite = true;
    for (int64_t i = 0; i < k; ++i) {
        uint32_t bits;
        std::memcpy(&bits, row + i, 4);
        bits += 0x7fff + (bits >> 16 & 1);
        finite = finite && (bits & 0x7f800000) != 0x7f800000;
        out[i * LANES].bits = uint16_t(bits >> 16);
    }
    return finite;
}

bool put_int8(uint8_t* panel, int64_t lane, const float* row, int64_t k) {
    for (int64_t group = 0; group < k / GROUP; ++group, row += GROUP) {
        float largest = 0.0f;
        for (int i = 0; i < GROUP; ++i) largest = std::max(largest, std::fabs(row[i]));
        // The weights are divided by the scale as it is stored, so its rounding costs nothing.
        const float scale = as_half(largest / 127.0f);
        if (std::isinf(scale)) return false;
        put_half(scale_start(panel, group, INT8_PAIR), lane, scale);
        uint8_t* out = group_start(panel, group, INT8_PAIR) + lane * 4;
        for (int i = 0; i < GROUP; ++i) {
            const float q = scale > 0.0f ? std::nearbyint(row[i] / scale) : 0.0f;
            out[i / 4 * 64 + i % 4] = uint8_t(ZERO_WEIGHT + int(std::clamp(q, -127.0f, 127.0f)));
        }
    }
    return true;
}

// weight = minimum + scale * level; both are exact in half precision.
struct Affine {
    float scale, minimum;
    bool finite() const { return std::isfinite(scale) && std::isfinite(minimum); }
    int level(float weight) const {
        if (scale == 0.0f) return 0;
        return int(std::clamp(std::nearbyint((weight - minimum) / scale), 0.0f, LEVELS - 1.0f));
    }
    float weight(int level) const { return minimum + scale * float(level); }
    bool keeps(const float* group) const {
        if (!finite()) return false;
        for (int i = 0; i < GROUP; ++i)
            if (weight(level(group[i])) != group[i]) return false;
        return true;
    }
};

// From the smallest weight to the largest, unless some other scale and minimum give every weight
// exactly: those of a group that comes from a 4-bit file are found again, also where it does not use
// all levels (`below` of them lie under its smallest weight) or counts them downwards.
Affine affine(const float* group) {
    float low = group[0], high = group[0];
    for (int i = 1; i < GROUP; ++i) {
        low = std::min(low, group[i]);
        high = std::max(high, group[i]);
    }
    const float minimum = as_half(low);
    // All alike: one step up is what half precision leaves of them.
    if (low == high) return {as_half(low - minimum), minimum};
    const Affine whole{as_half((high - minimum) / (LEVELS - 1)), minimum};
    if (whole.keeps(group)) return whole;
    for (int span = LEVELS - 1; span > 0; --span) {
        const float scale = (high - low) / float(span);
        if (scale != as_half(scale) || !Affine{scale, low}.keeps(group)) continue;
        for (int below = 0; below < LEVELS - span; ++below) {
            const float gap = scale * float(below);
            for (const Affine found : {Affine{scale, as_half(low - gap)},
                                       Affine{-scale, as_half(high + gap)}})
                if (found.keeps(group)) return found;
        }
    }
    return whole;
}

bool put_int4(uint8_t* panel, int64_t lane, const float* row, int64_t k) {
    for (int64_t group = 0; group < k / GROUP; ++group, row += GROUP) {
        const Affine found = affine(row);
        if (!found.finite()) return false;
        put_half(scale_start(panel, group, INT4_PAIR), lane, found.scale);
        put_half(scale_start(panel, group, INT4_PAIR) + MINIMA, lane, found.minimum);
        uint8_t* out = group_start(panel, group, INT4_PAIR) + lane * 4;
        for (int i = 0; i < GROUP / 2; ++i) {
            const float* first = row + i / 4 * 8 + i % 4;
            out[i / 4 * 64 + i % 4] =
                uint8_t(found.level(first[0]) | found.level(first[4]) << 4);
        }
    }
    return true;
}

bool put_row(uint8_t* panel, int64_t lane, const float* row, int64_t k, WeightKind kind) {
    switch (kind) {
        case WeightKind::f32: put_f32(panel, lane, row, k); return true;
        case WeightKind::int8: return put_int8(panel, lane, row, k);
        case WeightKind::int4: return put_int4(panel, lane, row, k);
        case WeightKind::bf16: return put_bf16(panel, lane, row, k);
    }
    return false;
}

}  // namespace

PackResult pack_rows(uint8_t* out, const float* weight, int64_t first_row, int64_t rows, int64_t n,
                     int64_t k, WeightKind kind) {
    for (int64_t i = 0; i < rows * k; ++i)
        if (!std::isfinite(weight[i])) return PackResult::not_finite;
    const int64_t bytes = panel_bytes(k, kind);
    int64_t end = first_row + rows;
    const float* zeros = nullptr;
    float* padding = nullptr;
    if (end == n && end % LANES) {
        end = (end + LANES - 1) / LANES * LANES;
        zeros = padding = new float[size_t(k)]();
    }
    PackResult result = PackResult::ok;
    for (int64_t row = first_row; row < end; ++row) {
        uint8_t* panel = out + row / LANES * bytes;
        const float* from = row < n ? weight + (row - first_row) * k : zeros;
        if (!put_row(panel, row % LANES, from, k, kind)) result = PackResult::too_large;
    }
    delete[] padding;
    return result;
}

void unpack_row(const uint8_t* data, int64_t row, int64_t k, WeightKind kind, float* out) {
    uint8_t* panel = const_cast<uint8_t*>(data) + row / LANES * panel_bytes(k, kind);
    const int64_t lane = row % LANES;
    if (kind == WeightKind::f32) {
        const float* from = reinterpret_cast<const float*>(panel) + lane;
        for (int64_t i = 0; i < k; ++i) out[i] = from[i * LANES];
        return;
    }
    if (kind == WeightKind::bf16) {
        const Bf16* from = reinterpret_cast<const Bf16*>(panel) + lane;
        for (int64_t i = 0; i < k; ++i) {
            const uint32_t bits = uint32_t(from[i * LANES].bits) << 16;
            std::memcpy(out + i, &bits, 4);
        }
        return;
    }
    for (int64_t group = 0; group < k / GROUP; ++group, out += GROUP) {
        if (kind == WeightKind::int8) {
            const float scale = get_half(scale_start(panel, group, INT8_PAIR), lane);
            const uint8_t* from = group_start(panel, group, INT8_PAIR) + lane * 4;
            for (int i = 0; i < GROUP; ++i)
                out[i] = float(int(from[i / 4 * 64 + i % 4]) - ZERO_WEIGHT) * scale;
            continue;
        }
        const uint8_t* scales = scale_start(panel, group, INT4_PAIR);
        const Affine found{get_half(scales, lane), get_half(scales + MINIMA, lane)};
        const uint8_t* from = group_start(panel, group, INT4_PAIR) + lane * 4;
        for (int i = 0; i < GROUP; ++i) {
            const uint8_t both = from[i / 8 * 64 + i % 4];
            out[i] = found.weight(i / 4 % 2 ? both >> 4 : both & 15);
        }
    }
}

}  // namespace wager
