// Picking a token: maxima per block of 64 logits, sums of exponentials, and Gumbel noise from
// Philox4x32-10 (Salmon et al., 2011), a counter-based generator: the noise of a token is a function
// of its id and of what the row is, and of nothing else.
#pragma once

#include "isa.h"

namespace wager::WAGER_ISA {

constexpr int64_t SELECT_BLOCK = 64;
// Above the largest Gumbel noise that 32 random bits can give (33 log 2 = 22.87).
constexpr float MOST_NOISE = 23.0f;
constexpr float PLUS_INFINITY = __builtin_inff();

struct Words { I w[4]; };

inline Words philox_rounds(Words c, uint32_t key0, uint32_t key1) {
    const I m0 = set1_int(int32_t(0xD2511F53u)), m1 = set1_int(int32_t(0xCD9E8D57u));
    for (int round = 0; round < 10; ++round) {
        I high0, low0, high1, low1;
        multiply_wide(m0, c.w[0], high0, low0);
        multiply_wide(m1, c.w[2], high1, low1);
        c.w[0] = bit_xor(bit_xor(high1, c.w[1]), set1_int(int32_t(key0)));
        c.w[1] = low1;
        c.w[2] = bit_xor(bit_xor(high0, c.w[3]), set1_int(int32_t(key1)));
        c.w[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

inline void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    Words c;
    for (int i = 0; i < 4; ++i) c.w[i] = set1_int(int32_t(counter[i]));
    c = philox_rounds(c, key[0], key[1]);
    for (int i = 0; i < 4; ++i) {
        uint32_t lanes[LANES];
        store_int(lanes, c.w[i]);
        out[i] = lanes[0];
    }
}

// -log(-log(u)) with u = (bits + 1/2) / 2^32. Near 1 the logarithm is taken from 1 - u, which is
// exact there: all 32 bits count at both ends.
inline V gumbel(I random) {
    const V half = set1(0.5f), unit = set1(0x1p-32f);
    const V u = mul(add(unsigned_to_float(random), half), unit);
    const V rest = mul(add(unsigned_to_float(bit_xor(random, set1_int(-1))), half), unit);
    V e;
    const V m = mantissa(u, e);
    const M high = less(set1(0.70710678f), u);
    const V f = select(high, sub(set1(0.0f), rest), sub(m, set1(1.0f)));
    const V log_u = log_reduced(f, select(high, set1(0.0f), e));
    return sub(set1(0.0f), log(sub(set1(0.0f), log_u)));
}

// 64 logits as four vectors, minus infinity behind the end.
struct Logits {
    V v[4];
    Logits(const float* logits, int64_t n, int64_t first) {
        if (first + SELECT_BLOCK <= n) {
            for (int i = 0; i < 4; ++i) v[i] = load(logits + first + i * LANES);
            return;
        }
        float padded[SELECT_BLOCK];
        for (int64_t i = 0; i < SELECT_BLOCK; ++i)
            padded[i] = first + i < n ? logits[first + i] : -PLUS_INFINITY;
        for (int i = 0; i < 4; ++i) v[i] = load(padded + i * LANES);
    }
};

inline Top block_max(const float* logits, int64_t n, float* maxima) {
    unsigned finite = 0xffff;
    float best = -PLUS_INFINITY;
    int64_t best_block = -1;
    for (int64_t block = 0; block * SELECT_BLOCK < n; ++block) {
        const Logits l(logits, n, block * SELECT_BLOCK);
        const V top = max(max(l.v[0], l.v[1]), max(l.v[2], l.v[3]));
        for (int i = 0; i < 4; ++i) finite &= bits(less(l.v[i], set1(PLUS_INFINITY)));
        maxima[block] = max_lanes(top);
        if (maxima[block] > best) {
            best = maxima[block];
            best_block = block;
        }
    }
    if (finite != 0xffff) return {best, -1, true};
    if (best_block < 0) return {best, -1, false};
    int64_t id = best_block * SELECT_BLOCK;
    while (logits[id] != best) ++id;
    return {best, int32_t(id), false};
}

inline int64_t at_least(const float* logits, int64_t n, float bound, float* out) {
    int64_t count = 0;
    for (int64_t first = 0; first < n; first += SELECT_BLOCK) {
        const Logits l(logits, n, first);
        for (int i = 0; i < 4; ++i) {
            unsigned mask = bits(at_least(l.v[i], set1(bound)));
            if (first + (i + 1) * LANES > n)
                mask &= first + i * LANES >= n ? 0u : (1u << (n - first - i * LANES)) - 1;
            for (; mask; mask &= mask - 1)
                out[count++] = logits[first + i * LANES + __builtin_ctz(mask)];
        }
    }
    return count;
}

inline V exp_shifted(V logits, float top, float inverse) {
    return exp(mul(sub(logits, set1(top)), set1(inverse)));
}

inline double exp_sum(const float* logits, int64_t n, float top, float inverse, float bound) {
    double total = 0.0;
    for (int64_t first = 0; first < n;) {
        V sum = set1(0.0f);
        for (int64_t i = 0; i < 16 && first < n; ++i, first += SELECT_BLOCK) {
            const Logits l(logits, n, first);
            for (int j = 0; j < 4; ++j)
                sum = add(sum, select(at_least(l.v[j], set1(bound)),
                                      exp_shifted(l.v[j], top, inverse), set1(0.0f)));
        }
        total += double(sum_lanes(sum));
    }
    return total;
}

inline void exp_values(const float* logits, int64_t n, float top, float inverse, float* out) {
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t part = n - i < LANES ? n - i : LANES;
        store_part(out + i, exp_shifted(load_part(logits + i, part), top, inverse), part);
    }
}

struct Best {
    float value;
    int64_t id;
};

// The least random word whose noise reaches `wanted`, or a little less: noise grows with the word.
// The margin is a hundred times the error of gumbel().
inline uint32_t least_word(float wanted) {
    const double u = __builtin_exp(-__builtin_exp(-(double(wanted) - 1e-3)));
    const double word = u * 0x1p32 - 2.0;
    return word > 0.0 ? uint32_t(word) : 0u;
}
inline bool any_at_least(const Words& words, uint32_t least) {
    const I flip = set1_int(INT32_MIN), limit = set1_int(int32_t(least ^ 0x80000000u));
    unsigned below = 0xffff;
    for (int w = 0; w < 4; ++w) below &= bits(less(bit_xor(words.w[w], flip), limit));
    return below != 0xffff;
}

// Noise of the 64 ids from `first` on, added to their scaled logits; improves `best`. No scaled logit
// is above `most_scaled`.
inline void gumbel_block(const float* logits, int64_t n, int64_t first, float top, float inverse,
                         float bound, float most_scaled, const Philox& noise, Best& best) {
    Logits l(logits, n, first);
    // Lane 4 g + j of the transposed vectors is the counter 4 j + g, vector w its word w.
    transpose4(l.v[0], l.v[1], l.v[2], l.v[3]);
    const int32_t order[LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    Words c{{add(load_int(order), set1_int(int32_t(first / 4))), set1_int(int32_t(noise.position)),
             set1_int(int32_t(noise.choice)), set1_int(int32_t(noise.purpose))}};
    c = philox_rounds(c, noise.key[0], noise.key[1]);
    if (!any_at_least(c, least_word(best.value - most_scaled))) return;
    V value[4];
    for (int w = 0; w < 4; ++w) {
        const V scaled = mul(sub(l.v[w], set1(top)), set1(inverse));
        value[w] = select(at_least(l.v[w], set1(bound)), add(scaled, gumbel(c.w[w])),
                          set1(-PLUS_INFINITY));
    }
    const V most = max(max(value[0], value[1]), max(value[2], value[3]));
    if (!bits(at_least(most, set1(best.value)))) return;
    for (int w = 0; w < 4; ++w) {
        float v[LANES];
        store(v, value[w]);
        for (int lane = 0; lane < LANES; ++lane) {
            const int64_t id = first + order[lane] * 4 + w;
            if (v[lane] > best.value || (v[lane] == best.value && id < best.id))
                best = {v[lane], id};
        }
    }
}

inline int32_t gumbel_max(const float* logits, int64_t n, float top, int32_t top_id, float inverse,
                          float bound, const float* maxima, const Philox& noise) {
    // The block of the largest logit comes first: it sets a mark that prunes most of the others.
    Best best{-PLUS_INFINITY, INT64_MAX};
    const int64_t likely = top_id / SELECT_BLOCK;
    const auto visit = [&](int64_t block, float most_scaled) {
        gumbel_block(logits, n, block * SELECT_BLOCK, top, inverse, bound, most_scaled, noise, best);
    };
    visit(likely, PLUS_INFINITY);
    for (int64_t block = 0; block * SELECT_BLOCK < n; ++block) {
        if (block == likely) continue;
        float most_scaled = PLUS_INFINITY;
        if (maxima) {
            if (maxima[block] < bound) continue;
            most_scaled = (maxima[block] - top) * inverse;
            if (most_scaled + MOST_NOISE < best.value) continue;
        }
        visit(block, most_scaled);
    }
    return int32_t(best.id);
}

}  // namespace wager::WAGER_ISA
