// What the machine can do at best, for benchmarks: reading, and multiply-adds from registers.
#pragma once

#include "isa.h"

namespace wager::WAGER_ISA {

inline float probe_read(const uint8_t* data, int64_t bytes) {
    V sum[4];
    for (V& s : sum) s = set1(0.0f);
    for (int64_t i = 0; i + 256 <= bytes; i += 256) {
        prefetch(data + i + 4096);
        prefetch(data + i + 4160);
        prefetch(data + i + 4224);
        prefetch(data + i + 4288);
        for (int j = 0; j < 4; ++j)
            sum[j] = max(sum[j], load(reinterpret_cast<const float*>(data + i + j * 64)));
    }
    return max_lanes(max(max(sum[0], sum[1]), max(sum[2], sum[3])));
}

// Both return the number of multiply-adds done.
inline int64_t probe_f32(int64_t rounds, float* sink) {
    constexpr int CHAINS = MAX_ROWS_F32 < 12 ? MAX_ROWS_F32 : 12;
    V sum[CHAINS];
    for (V& s : sum) s = set1(1.0f);
    const V factor = set1(*sink), term = set1(sink[1]);
    for (int64_t i = 0; i < rounds; ++i)
        for (V& s : sum) s = fma(s, factor, term);
    for (V& s : sum) sum[0] = max(sum[0], s);
    *sink = max_lanes(sum[0]);
    return rounds * CHAINS * LANES;
}

template <I (*Step)(I, I, I), int PRODUCTS>
inline int64_t probe_integers(int64_t rounds, float* sink) {
    constexpr int CHAINS = 6;
    I sum[CHAINS];
    for (I& s : sum) s = set1_int(0);
    const I a = set1_int(int32_t(sink[0])), b = set1_int(int32_t(sink[1]));
    for (int64_t i = 0; i < rounds; ++i)
        for (I& s : sum) s = Step(s, a, b);
    for (I& s : sum) sum[0] = bit_or(sum[0], s);
    *sink = max_lanes(to_float(sum[0]));
    return rounds * CHAINS * PRODUCTS;
}

}  // namespace wager::WAGER_ISA
