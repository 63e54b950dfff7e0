// Sixteen lanes as one AVX-512 register (F, BW, DQ, VL, VNNI).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace wager::WAGER_ISA {

// Sums of 24 rows, 1 register of weights; the broadcasts are memory operands.
constexpr int MAX_ROWS_F32 = 24;
// Sums of 18 rows, 8 registers of weights, scales and temporaries.
constexpr int MAX_ROWS_INT8 = 18;
constexpr const char* ISA_NAME = "avx512";

using V = __m512;
// A type of its own, so that integer and float functions can share names.
struct I { __m512i v; };
using M = __mmask16;

inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }
inline V load(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load(const Bf16* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline void store_half(uint16_t* p, V x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline I load_int(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_int(void* p, I x) { _mm512_storeu_si512(p, x.v); }
inline V set1(float x) { return _mm512_set1_ps(x); }
inline I set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline V add(V x, V y) { return _mm512_add_ps(x, y); }
inline V sub(V x, V y) { return _mm512_sub_ps(x, y); }
inline V mul(V x, V y) { return _mm512_mul_ps(x, y); }
inline V div(V x, V y) { return _mm512_div_ps(x, y); }
inline V fma(V x, V y, V z) { return _mm512_fmadd_ps(x, y, z); }
inline V max(V x, V y) { return _mm512_max_ps(x, y); }
inline V min(V x, V y) { return _mm512_min_ps(x, y); }
inline V abs(V x) { return _mm512_abs_ps(x); }
inline I to_int(V x) { return {_mm512_cvtps_epi32(x)}; }
inline V to_float(I x) { return _mm512_cvtepi32_ps(x.v); }
inline V unsigned_to_float(I x) { return _mm512_cvtepu32_ps(x.v); }
inline I as_int(V x) { return {_mm512_castps_si512(x)}; }
inline V as_float(I x) { return _mm512_castsi512_ps(x.v); }
inline I add(I x, I y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline I sub(I x, I y) { return {_mm512_sub_epi32(x.v, y.v)}; }
inline I bit_and(I x, I y) { return {_mm512_and_si512(x.v, y.v)}; }
inline I bit_or(I x, I y) { return {_mm512_or_si512(x.v, y.v)}; }
inline I bit_xor(I x, I y) { return {_mm512_xor_si512(x.v, y.v)}; }
template <int N> I shift_left(I x) { return {_mm512_slli_epi32(x.v, N)}; }
template <int N> I shift_right(I x) { return {_mm512_srli_epi32(x.v, N)}; }
inline void multiply_wide(I x, I y, I& high, I& low) {
    const __m512i even = _mm512_mul_epu32(x.v, y.v);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x.v, 32), _mm512_srli_epi64(y.v, 32));
    low.v = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    high.v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
}

inline M less(V x, V y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
inline M at_least(V x, V y) { return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ); }
inline M less(I x, I y) { return _mm512_cmplt_epi32_mask(x.v, y.v); }
inline V select(M m, V x, V y) { return _mm512_mask_blend_ps(m, y, x); }
inline I select(M m, I x, I y) { return {_mm512_mask_blend_epi32(m, y.v, x.v)}; }
inline unsigned bits(M m) { return m; }

// The lanes folded in halves: lane i with lane i + 8, then i + 4, 2, 1.
#define WAGER_FOLD(name, op8, op4)                                                     \
    inline float name(V x) {                                                           \
        const __m256 y = op8(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); \
        __m128 z = op4(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));        \
        z = op4(z, _mm_movehl_ps(z, z));                                               \
        return _mm_cvtss_f32(op4(z, _mm_shuffle_ps(z, z, 1)));                         \
    }
WAGER_FOLD(sum_lanes, _mm256_add_ps, _mm_add_ps)
WAGER_FOLD(max_lanes, _mm256_max_ps, _mm_max_ps)
#undef WAGER_FOLD
inline int32_t sum_lanes(I x) { return _mm512_reduce_add_epi32(x.v); }
inline void narrow(I x, int8_t* out) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(x.v));
}

// Transposes the 4 x 4 matrices of which lane group g of the four vectors holds the rows.
inline void transpose4(V& a, V& b, V& c, V& d) {
    const V low0 = _mm512_unpacklo_ps(a, b), high0 = _mm512_unpackhi_ps(a, b);
    const V low1 = _mm512_unpacklo_ps(c, d), high1 = _mm512_unpackhi_ps(c, d);
    a = _mm512_shuffle_ps(low0, low1, 0x44);
    b = _mm512_shuffle_ps(low0, low1, 0xee);
    c = _mm512_shuffle_ps(high0, high1, 0x44);
    d = _mm512_shuffle_ps(high0, high1, 0xee);
}

// Into the second cache: it has more requests under way than the first.
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// One step of the integer dot product at its fastest: how many products it adds to the sums.
constexpr int INT8_PRODUCTS = 64;
inline I multiply_add_int8(I sum, I a, I b) { return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)}; }

constexpr int INT4_PRODUCTS = INT8_PRODUCTS;
inline I multiply_add_int4(I sum, I a, I b) { return multiply_add_int8(sum, a, b); }

// int8: one word holds four consecutive k of one row, signed; the weights, stored with an offset of
// 128, are the unsigned side of the dot-product instruction.
constexpr int QUAD_WORDS = 1;
inline void pack_quad(const int8_t* q, uint32_t* out, int64_t) { std::memcpy(out, q, 4); }

// `start(r)` is where the sum of row r begins. Inlined, so that the quads stay in registers.
template <int R, class Start, class Use>
[[gnu::always_inline]] inline void quad_dots(const __m512i (&quads)[8], const uint32_t* x,
                                             Start start, Use use) {
    // Rolled: unrolled, the compiler keeps too many broadcasts at once.
#pragma GCC unroll 1
    for (int r = 0; r < R; ++r) {
        __m512i dot = _mm512_set1_epi32(start(r));
        WAGER_UNROLL
        for (int quad = 0; quad < 8; ++quad)
            dot = _mm512_dpbusd_epi32(dot, quads[quad], _mm512_set1_epi32(int(x[quad * R + r])));
        use(r, I{dot});
    }
}

template <int R, class Use>
inline void group_dots(const uint8_t* w, const uint32_t* x, const int32_t* start, Use use) {
    __m512i quads[8];
    WAGER_UNROLL
    for (int quad = 0; quad < 8; ++quad) quads[quad] = _mm512_loadu_si512(w + quad * 64);
    quad_dots<R>(quads, x, [&](int r) { return start[r]; }, use);
}

// int4: a line of weights holds two quads, unsigned as they are.
template <int R, class Use>
inline void nibble_dots(const uint8_t* w, const uint32_t* x, Use use) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i quads[8];
    WAGER_UNROLL
    for (int line = 0; line < 4; ++line) {
        const __m512i both = _mm512_loadu_si512(w + line * 64);
        quads[2 * line] = _mm512_and_si512(both, mask);
        quads[2 * line + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
    quad_dots<R>(quads, x, [](int) { return 0; }, use);
}

}  // namespace wager::WAGER_ISA
