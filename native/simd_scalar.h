// Sixteen lanes in plain C++: the meaning that the other instruction sets have to match to the bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "isa.h"

namespace wager::WAGER_ISA {

constexpr int MAX_ROWS_F32 = 6;
constexpr int MAX_ROWS_INT8 = 6;
constexpr const char* ISA_NAME = "scalar";

struct V { float v[16]; };
struct I { int32_t v[16]; };
struct M { bool v[16]; };

#define WAGER_EACH for (int i = 0; i < 16; ++i)

inline V load(const float* p) { V r; std::memcpy(r.v, p, 64); return r; }
inline void store(float* p, V a) { std::memcpy(p, a.v, 64); }
inline V load(const uint16_t* p) { V r; WAGER_EACH r.v[i] = half_to_float(p[i]); return r; }
inline V load(const Bf16* p) {
    V r;
    WAGER_EACH {
        const uint32_t bits = uint32_t(p[i].bits) << 16;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
inline void store_half(uint16_t* p, V a) { WAGER_EACH p[i] = float_to_half(a.v[i]); }
inline I load_int(const void* p) { I r; std::memcpy(r.v, p, 64); return r; }
inline void store_int(void* p, I a) { std::memcpy(p, a.v, 64); }
inline V set1(float x) { V r; WAGER_EACH r.v[i] = x; return r; }
inline I set1_int(int32_t x) { I r; WAGER_EACH r.v[i] = x; return r; }
inline V add(V a, V b) { WAGER_EACH a.v[i] += b.v[i]; return a; }
inline V sub(V a, V b) { WAGER_EACH a.v[i] -= b.v[i]; return a; }
inline V mul(V a, V b) { WAGER_EACH a.v[i] *= b.v[i]; return a; }
inline V div(V a, V b) { WAGER_EACH a.v[i] /= b.v[i]; return a; }
inline V fma(V a, V b, V c) { WAGER_EACH c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
inline V max(V a, V b) { WAGER_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline V min(V a, V b) { WAGER_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline V abs(V a) { WAGER_EACH a.v[i] = std::fabs(a.v[i]); return a; }

inline I to_int(V a) {
    I r;
    WAGER_EACH r.v[i] = std::fabs(a.v[i]) < 2147483648.0f ? int32_t(std::nearbyint(a.v[i])) : INT32_MIN;
    return r;
}
inline V to_float(I a) { V r; WAGER_EACH r.v[i] = float(a.v[i]); return r; }
inline V unsigned_to_float(I a) { V r; WAGER_EACH r.v[i] = float(uint32_t(a.v[i])); return r; }
inline I as_int(V a) { I r; std::memcpy(r.v, a.v, 64); return r; }
inline V as_float(I a) { V r; std::memcpy(r.v, a.v, 64); return r; }
inline I add(I a, I b) { WAGER_EACH a.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); return a; }
inline I sub(I a, I b) { WAGER_EACH a.v[i] = int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); return a; }
inline I bit_and(I a, I b) { WAGER_EACH a.v[i] &= b.v[i]; return a; }
inline I bit_or(I a, I b) { WAGER_EACH a.v[i] |= b.v[i]; return a; }
inline I bit_xor(I a, I b) { WAGER_EACH a.v[i] ^= b.v[i]; return a; }
template <int N> I shift_left(I a) { WAGER_EACH a.v[i] = int32_t(uint32_t(a.v[i]) << N); return a; }
template <int N> I shift_right(I a) { WAGER_EACH a.v[i] = int32_t(uint32_t(a.v[i]) >> N); return a; }
inline void multiply_wide(I a, I b, I& high, I& low) {
    WAGER_EACH {
        const uint64_t p = uint64_t(uint32_t(a.v[i])) * uint32_t(b.v[i]);
        high.v[i] = int32_t(p >> 32);
        low.v[i] = int32_t(p);
    }
}

inline M less(V a, V b) { M r; WAGER_EACH r.v[i] = a.v[i] < b.v[i]; return r; }
inline M at_least(V a, V b) { M r; WAGER_EACH r.v[i] = a.v[i] >= b.v[i]; return r; }
inline M less(I a, I b) { M r; WAGER_EACH r.v[i] = a.v[i] < b.v[i]; return r; }
inline V select(M m, V a, V b) { WAGER_EACH a.v[i] = m.v[i] ? a.v[i] : b.v[i]; return a; }
inline I select(M m, I a, I b) { WAGER_EACH a.v[i] = m.v[i] ? a.v[i] : b.v[i]; return a; }
inline unsigned bits(M m) { unsigned r = 0; WAGER_EACH r |= unsigned(m.v[i]) << i; return r; }

// The lanes folded in halves: lane i with lane i + 8, then i + 4, 2, 1.
#define WAGER_FOLD(T, R, name, expression)                              \
    inline R name(T x) {                                                \
        for (int width = 8; width; width /= 2)                          \
            for (int i = 0; i < width; ++i) {                           \
                const R a = x.v[i], b = x.v[i + width];                 \
                x.v[i] = expression;                                    \
            }                                                           \
        return x.v[0];                                                  \
    }
WAGER_FOLD(V, float, sum_lanes, a + b)
WAGER_FOLD(V, float, max_lanes, a > b ? a : b)
WAGER_FOLD(I, int32_t, sum_lanes, a + b)
#undef WAGER_FOLD
inline void narrow(I x, int8_t* out) { WAGER_EACH out[i] = int8_t(x.v[i]); }

// Transposes the 4 x 4 matrices of which lane group g of the four vectors holds the rows.
inline void transpose4(V& a, V& b, V& c, V& d) {
    const V in[4] = {a, b, c, d};
    V* out[4] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; ++i)
        for (int group = 0; group < 16; group += 4)
            for (int j = 0; j < 4; ++j) out[i]->v[group + j] = in[j].v[group + i];
}

inline void prefetch(const void*) {}

// One step of the integer dot product at its fastest: how many products it adds to the sums.
constexpr int INT8_PRODUCTS = 16;
inline I multiply_add_int8(I sum, I a, I b) {
    WAGER_EACH sum.v[i] += int8_t(a.v[i]) * int8_t(b.v[i]);
    return sum;
}

constexpr int INT4_PRODUCTS = INT8_PRODUCTS;
inline I multiply_add_int4(I sum, I a, I b) { return multiply_add_int8(sum, a, b); }

// int8: one word holds four consecutive k of one row.
constexpr int QUAD_WORDS = 1;
inline void pack_quad(const int8_t* q, uint32_t* out, int64_t) { std::memcpy(out, q, 4); }

// The exact integer dot products of one group: `x` is [8][R] words, `w` [8][16][4] bytes of
// weight + 128, and `start` the R sums of -128 * x that undo the offset.
template <int R, class Use>
inline void group_dots(const uint8_t* w, const uint32_t* x, const int32_t* start, Use use) {
    for (int r = 0; r < R; ++r) {
        I dot = set1_int(start[r]);
        for (int quad = 0; quad < 8; ++quad) {
            int8_t q[4];
            std::memcpy(q, x + quad * R + r, 4);
            for (int lane = 0; lane < 16; ++lane)
                for (int j = 0; j < 4; ++j) dot.v[lane] += q[j] * w[quad * 64 + lane * 4 + j];
        }
        use(r, dot);
    }
}

// The same for int4: `w` is [4][16][4] bytes of two quads each, `x` as bytes.
template <int R, class Use>
inline void nibble_dots(const uint8_t* w, const uint32_t* x, Use use) {
    for (int r = 0; r < R; ++r) {
        I dot = set1_int(0);
        for (int quad = 0; quad < 8; ++quad) {
            int8_t q[4];
            std::memcpy(q, x + quad * R + r, 4);
            for (int lane = 0; lane < 16; ++lane)
                for (int j = 0; j < 4; ++j) {
                    const uint8_t both = w[quad / 2 * 64 + lane * 4 + j];
                    dot.v[lane] += q[j] * (quad % 2 ? both >> 4 : both & 15);
                }
        }
        use(r, dot);
    }
}

#undef WAGER_EACH

}  // namespace wager::WAGER_ISA
