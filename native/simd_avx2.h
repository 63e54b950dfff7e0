// Sixteen lanes as two AVX2 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace wager::WAGER_ISA {

// 6 rows x 2 registers of sums, 2 of weights, 1 broadcast: 15 of the 16 registers.
constexpr int MAX_ROWS_F32 = 6;
// 5 rows x 2 registers of integer sums, 4 of widened weights, 1 broadcast (int4: and 1 mask).
constexpr int MAX_ROWS_INT8 = 5;
constexpr const char* ISA_NAME = "avx2";

struct V { __m256 a, b; };
struct I { __m256i a, b; };
struct M { __m256 a, b; };

inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline V load(const uint16_t* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline V load(const Bf16* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    const auto widen = [](__m128i x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    };
    return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
}
inline void store_half(uint16_t* p, V x) {
    __m128i* q = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline I load_int(const void* p) {
    const __m256i* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline void store_int(void* p, I x) {
    __m256i* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
}
inline V set1(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline I set1_int(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }

#define WAGER_BINARY(T, name, op) inline T name(T x, T y) { return {op(x.a, y.a), op(x.b, y.b)}; }
WAGER_BINARY(V, add, _mm256_add_ps)
WAGER_BINARY(V, sub, _mm256_sub_ps)
WAGER_BINARY(V, mul, _mm256_mul_ps)
WAGER_BINARY(V, div, _mm256_div_ps)
WAGER_BINARY(V, max, _mm256_max_ps)
WAGER_BINARY(V, min, _mm256_min_ps)
WAGER_BINARY(I, add, _mm256_add_epi32)
WAGER_BINARY(I, sub, _mm256_sub_epi32)
WAGER_BINARY(I, bit_and, _mm256_and_si256)
WAGER_BINARY(I, bit_or, _mm256_or_si256)
WAGER_BINARY(I, bit_xor, _mm256_xor_si256)
#undef WAGER_BINARY

inline V fma(V x, V y, V z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline V abs(V x) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline I to_int(V x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline V to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline __m256 unsigned_to_float(__m256i x) {
    // high * 65536 is exact, so the fused sum rounds once, like a direct conversion.
    const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 16));
    const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
    return _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), low);
}
inline V unsigned_to_float(I x) { return {unsigned_to_float(x.a), unsigned_to_float(x.b)}; }
inline I as_int(V x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline V as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
template <int N> I shift_left(I x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> I shift_right(I x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
inline void multiply_wide(__m256i x, __m256i y, __m256i& high, __m256i& low) {
    const __m256i even = _mm256_mul_epu32(x, y);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
inline void multiply_wide(I x, I y, I& high, I& low) {
    multiply_wide(x.a, y.a, high.a, low.a);
    multiply_wide(x.b, y.b, high.b, low.b);
}

inline M less(V x, V y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
inline M at_least(V x, V y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)};
}
inline M less(I x, I y) {
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(y.a, x.a)),
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.b, x.b))};
}
inline V select(M m, V x, V y) {
    return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
inline I select(M m, I x, I y) { return as_int(select(m, as_float(x), as_float(y))); }
inline unsigned bits(M m) {
    return unsigned(_mm256_movemask_ps(m.a)) | unsigned(_mm256_movemask_ps(m.b)) << 8;
}

// The lanes folded in halves: lane i with lane i + 8, then i + 4, 2, 1.
#define WAGER_FOLD(name, op8, op4)                                                     \
    inline float name(__m256 x) {                                                      \
        __m128 y = op4(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));        \
        y = op4(y, _mm_movehl_ps(y, y));                                               \
        return _mm_cvtss_f32(op4(y, _mm_shuffle_ps(y, y, 1)));                         \
    }                                                                                  \
    inline float name(V x) { return name(op8(x.a, x.b)); }
WAGER_FOLD(sum_lanes, _mm256_add_ps, _mm_add_ps)
WAGER_FOLD(max_lanes, _mm256_max_ps, _mm_max_ps)
#undef WAGER_FOLD
inline int32_t sum_lanes(I x) {
    const __m256i y = _mm256_add_epi32(x.a, x.b);
    __m128i z = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    z = _mm_add_epi32(z, _mm_shuffle_epi32(z, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(z, _mm_shuffle_epi32(z, 1)));
}
inline void narrow(I x, int8_t* out) {
    // Packing works within halves of a register: the permutation undoes it.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words),
                                          _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

// Transposes the 4 x 4 matrices of which lane group g of the four vectors holds the rows.
inline void transpose4(__m256& a, __m256& b, __m256& c, __m256& d) {
    const __m256 low0 = _mm256_unpacklo_ps(a, b), high0 = _mm256_unpackhi_ps(a, b);
    const __m256 low1 = _mm256_unpacklo_ps(c, d), high1 = _mm256_unpackhi_ps(c, d);
    a = _mm256_shuffle_ps(low0, low1, 0x44);
    b = _mm256_shuffle_ps(low0, low1, 0xee);
    c = _mm256_shuffle_ps(high0, high1, 0x44);
    d = _mm256_shuffle_ps(high0, high1, 0xee);
}
inline void transpose4(V& a, V& b, V& c, V& d) {
    transpose4(a.a, b.a, c.a, d.a);
    transpose4(a.b, b.b, c.b, d.b);
}

// Into the second cache: it has more requests under way than the first.
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// One step of the integer dot product at its fastest: how many products it adds to the sums.
constexpr int INT8_PRODUCTS = 32;
inline I multiply_add_int8(I sum, I a, I b) {
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(a.a, b.a)),
            _mm256_add_epi32(sum.b, _mm256_madd_epi16(a.b, b.b))};
}

// The same with unsigned `a` in 4 bits: sums of 16 bits, as `nibble_dots` keeps them.
constexpr int INT4_PRODUCTS = 64;
inline I multiply_add_int4(I sum, I a, I b) {
    return {_mm256_add_epi16(sum.a, _mm256_maddubs_epi16(a.a, b.a)),
            _mm256_add_epi16(sum.b, _mm256_maddubs_epi16(a.b, b.b))};
}

// int8: four k of one row are widened to 16 bits, as two words: k 0 and 2, k 1 and 3. That order is
// what two shifts make of the packed weights, and 16-bit products cannot saturate.
constexpr int QUAD_WORDS = 2;
inline void pack_quad(const int8_t* q, uint32_t* out, int64_t stride) {
    out[0] = uint32_t(uint16_t(q[0])) | uint32_t(uint16_t(q[2])) << 16;
    out[stride] = uint32_t(uint16_t(q[1])) | uint32_t(uint16_t(q[3])) << 16;
}

template <int R, class Use>
inline void group_dots(const uint8_t* w, const uint32_t* x, const int32_t*, Use use) {
    I dot[R];
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) dot[r] = set1_int(0);
    const __m256i offset = _mm256_set1_epi8(char(0x80));
    WAGER_UNROLL
    for (int quad = 0; quad < 8; ++quad) {
        const __m256i* p = reinterpret_cast<const __m256i*>(w + quad * 64);
        const __m256i wa = _mm256_xor_si256(_mm256_loadu_si256(p), offset);
        const __m256i wb = _mm256_xor_si256(_mm256_loadu_si256(p + 1), offset);
        const __m256i even_a = _mm256_srai_epi16(_mm256_slli_epi16(wa, 8), 8);
        const __m256i even_b = _mm256_srai_epi16(_mm256_slli_epi16(wb, 8), 8);
        const __m256i odd_a = _mm256_srai_epi16(wa, 8), odd_b = _mm256_srai_epi16(wb, 8);
        const uint32_t* xq = x + quad * 2 * R;
        WAGER_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m256i even = _mm256_set1_epi32(int(xq[r]));
            dot[r].a = _mm256_add_epi32(dot[r].a, _mm256_madd_epi16(even_a, even));
            dot[r].b = _mm256_add_epi32(dot[r].b, _mm256_madd_epi16(even_b, even));
            const __m256i odd = _mm256_set1_epi32(int(xq[R + r]));
            dot[r].a = _mm256_add_epi32(dot[r].a, _mm256_madd_epi16(odd_a, odd));
            dot[r].b = _mm256_add_epi32(dot[r].b, _mm256_madd_epi16(odd_b, odd));
        }
    }
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) use(r, dot[r]);
}

// int4: one word holds four k of one row as bytes. A group fits sums of 16 bits, with no saturation
// on the way: 8 quads of 2 products of at most 15 * 127 are 30,480.
template <int R, class Use>
inline void nibble_dots(const uint8_t* w, const uint32_t* x, Use use) {
    const __m256i mask = _mm256_set1_epi8(15);
    I sum[R];
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = set1_int(0);
    WAGER_UNROLL
    for (int line = 0; line < 4; ++line) {
        const I both = load_int(w + line * 64);
        const I first = {_mm256_and_si256(both.a, mask), _mm256_and_si256(both.b, mask)};
        const I second = {_mm256_and_si256(_mm256_srli_epi16(both.a, 4), mask),
                          _mm256_and_si256(_mm256_srli_epi16(both.b, 4), mask)};
        const uint32_t* words = x + line * 2 * R;
        WAGER_UNROLL
        for (int r = 0; r < R; ++r) {
            sum[r] = multiply_add_int4(sum[r], first, set1_int(int32_t(words[r])));
            sum[r] = multiply_add_int4(sum[r], second, set1_int(int32_t(words[R + r])));
        }
    }
    const __m256i ones = _mm256_set1_epi16(1);
    WAGER_UNROLL
    for (int r = 0; r < R; ++r)
        use(r, I{_mm256_madd_epi16(sum[r].a, ones), _mm256_madd_epi16(sum[r].b, ones)});
}

}  // namespace wager::WAGER_ISA
