#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace wager {
namespace {

constexpr uint8_t ZERO_WEIGHT = 128;

uint8_t* group_start(uint8_t* panel, int64_t group) {
    return panel + group / 2 * PAIR_BYTES + 64 + group % 2 * (GROUP * LANES);
}
uint8_t* scale_start(uint8_t* panel, int64_t group) {
    return panel + group / 2 * PAIR_BYTES + group % 2 * (LANES * 2);
}

void put_f32(uint8_t* panel, int64_t lane, const float* row, int64_t k) {
    float* out = reinterpret_cast<float*>(panel) + lane;
    for (int64_t i = 0; i < k; ++i) out[i * LANES] = row[i];
}

bool put_int8(uint8_t* panel, int64_t lane, const float* row, int64_t k) {
    for (int64_t group = 0; group < k / GROUP; ++group, row += GROUP) {
        float largest = 0.0f;
        for (int i = 0; i < GROUP; ++i) largest = std::max(largest, std::fabs(row[i]));
        // The weights are divided by the scale as it is stored, so its rounding costs nothing.
        const uint16_t stored = float_to_half(largest / 127.0f);
        const float scale = half_to_float(stored);
        if (std::isinf(scale)) return false;
        std::memcpy(scale_start(panel, group) + lane * 2, &stored, 2);
        uint8_t* out = group_start(panel, group) + lane * 4;
        for (int i = 0; i < GROUP; ++i) {
            const float q = scale > 0.0f ? std::nearbyint(row[i] / scale) : 0.0f;
            out[i / 4 * 64 + i % 4] = uint8_t(ZERO_WEIGHT + int(std::clamp(q, -127.0f, 127.0f)));
        }
    }
    return true;
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
        if (kind == WeightKind::f32) put_f32(panel, row % LANES, from, k);
        else if (!put_int8(panel, row % LANES, from, k)) result = PackResult::too_large;
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
    for (int64_t group = 0; group < k / GROUP; ++group) {
        uint16_t stored;
        std::memcpy(&stored, scale_start(panel, group) + lane * 2, 2);
        const float scale = half_to_float(stored);
        const uint8_t* from = group_start(panel, group) + lane * 4;
        for (int i = 0; i < GROUP; ++i)
            out[group * GROUP + i] = float(int(from[i / 4 * 64 + i % 4]) - ZERO_WEIGHT) * scale;
    }
}

}  // namespace wager
