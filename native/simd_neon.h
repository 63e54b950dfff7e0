// Sixteen lanes as four NEON registers (ARMv8.2 with dot products).
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace wager::WAGER_ISA {

// 6 rows x 4 registers of sums, 4 of weights, 1 broadcast: 29 of the 32 registers.
constexpr int MAX_ROWS_F32 = 6;
constexpr int MAX_ROWS_INT8 = 6;
constexpr const char* ISA_NAME = "neon";

struct V { float32x4_t q[4]; };
struct I { int32x4_t q[4]; };
struct M { uint32x4_t q[4]; };

#define WAGER_EACH _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)

inline V load(const float* p) { V r; WAGER_EACH r.q[i] = vld1q_f32(p + 4 * i); return r; }
inline void store(float* p, V x) { WAGER_EACH vst1q_f32(p + 4 * i, x.q[i]); }
inline V load(const uint16_t* p) {
    V r;
    WAGER_EACH r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return r;
}
inline V load(const Bf16* p) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(p);
    V r;
    WAGER_EACH r.q[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(halves + 4 * i), 16));
    return r;
}
inline void store_half(uint16_t* p, V x) {
    WAGER_EACH vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.q[i])));
}
inline I load_int(const void* p) {
    const uint8_t* bytes = static_cast<const uint8_t*>(p);
    I r;
    WAGER_EACH r.q[i] = vreinterpretq_s32_u8(vld1q_u8(bytes + 16 * i));
    return r;
}
inline void store_int(void* p, I x) {
    uint8_t* bytes = static_cast<uint8_t*>(p);
    WAGER_EACH vst1q_u8(bytes + 16 * i, vreinterpretq_u8_s32(x.q[i]));
}
inline V set1(float x) { V r; WAGER_EACH r.q[i] = vdupq_n_f32(x); return r; }
inline I set1_int(int32_t x) { I r; WAGER_EACH r.q[i] = vdupq_n_s32(x); return r; }

#define WAGER_BINARY(T, name, op) \
    inline T name(T x, T y) { WAGER_EACH x.q[i] = op(x.q[i], y.q[i]); return x; }
WAGER_BINARY(V, add, vaddq_f32)
WAGER_BINARY(V, sub, vsubq_f32)
WAGER_BINARY(V, mul, vmulq_f32)
WAGER_BINARY(V, div, vdivq_f32)
WAGER_BINARY(I, add, vaddq_s32)
WAGER_BINARY(I, sub, vsubq_s32)
WAGER_BINARY(I, bit_and, vandq_s32)
WAGER_BINARY(I, bit_or, vorrq_s32)
WAGER_BINARY(I, bit_xor, veorq_s32)
#undef WAGER_BINARY

// The second where one of them is NaN, as the other instruction sets have it.
inline float32x4_t max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline float32x4_t min(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
inline V max(V x, V y) { WAGER_EACH x.q[i] = max(x.q[i], y.q[i]); return x; }
inline V min(V x, V y) { WAGER_EACH x.q[i] = min(x.q[i], y.q[i]); return x; }
inline V fma(V x, V y, V z) { WAGER_EACH z.q[i] = vfmaq_f32(z.q[i], x.q[i], y.q[i]); return z; }
inline V abs(V x) { WAGER_EACH x.q[i] = vabsq_f32(x.q[i]); return x; }

// What does not fit is INT32_MIN.
inline I to_int(V x) {
    I r;
    WAGER_EACH {
        const uint32x4_t fits = vcaltq_f32(x.q[i], vdupq_n_f32(2147483648.0f));
        r.q[i] = vbslq_s32(fits, vcvtnq_s32_f32(x.q[i]), vdupq_n_s32(INT32_MIN));
    }
    return r;
}
inline V to_float(I x) { V r; WAGER_EACH r.q[i] = vcvtq_f32_s32(x.q[i]); return r; }
inline V unsigned_to_float(I x) {
    V r;
    WAGER_EACH r.q[i] = vcvtq_f32_u32(vreinterpretq_u32_s32(x.q[i]));
    return r;
}
inline I as_int(V x) { I r; WAGER_EACH r.q[i] = vreinterpretq_s32_f32(x.q[i]); return r; }
inline V as_float(I x) { V r; WAGER_EACH r.q[i] = vreinterpretq_f32_s32(x.q[i]); return r; }
template <int N> I shift_left(I x) { WAGER_EACH x.q[i] = vshlq_n_s32(x.q[i], N); return x; }
template <int N> I shift_right(I x) {
    WAGER_EACH x.q[i] = vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.q[i]), N));
    return x;
}
inline void multiply_wide(I x, I y, I& high, I& low) {
    WAGER_EACH {
        const uint32x4_t a = vreinterpretq_u32_s32(x.q[i]), b = vreinterpretq_u32_s32(y.q[i]);
        const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(a), vget_low_u32(b)));
        const uint32x4_t second = vreinterpretq_u32_u64(vmull_high_u32(a, b));
        low.q[i] = vreinterpretq_s32_u32(vuzp1q_u32(first, second));
        high.q[i] = vreinterpretq_s32_u32(vuzp2q_u32(first, second));
    }
}

inline M less(V x, V y) { M r; WAGER_EACH r.q[i] = vcltq_f32(x.q[i], y.q[i]); return r; }
inline M at_least(V x, V y) { M r; WAGER_EACH r.q[i] = vcgeq_f32(x.q[i], y.q[i]); return r; }
inline M less(I x, I y) { M r; WAGER_EACH r.q[i] = vcltq_s32(x.q[i], y.q[i]); return r; }
inline V select(M m, V x, V y) {
    WAGER_EACH x.q[i] = vbslq_f32(m.q[i], x.q[i], y.q[i]);
    return x;
}
inline I select(M m, I x, I y) {
    WAGER_EACH x.q[i] = vbslq_s32(m.q[i], x.q[i], y.q[i]);
    return x;
}
inline unsigned bits(M m) {
    const uint32_t places[4] = {1, 2, 4, 8};
    const uint32x4_t weights = vld1q_u32(places);
    unsigned r = 0;
    WAGER_EACH r |= vaddvq_u32(vandq_u32(m.q[i], weights)) << (4 * i);
    return r;
}

// The lanes folded in halves: lane i with lane i + 8, then i + 4, 2, 1.
inline float sum_lanes(V x) {
    const float32x4_t y = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
    const float32x2_t z = vadd_f32(vget_low_f32(y), vget_high_f32(y));
    return vget_lane_f32(z, 0) + vget_lane_f32(z, 1);
}
inline float max_lanes(V x) {
    const float32x4_t y = max(max(x.q[0], x.q[2]), max(x.q[1], x.q[3]));
    const float32x4_t z = max(y, vextq_f32(y, y, 2));
    return vgetq_lane_f32(max(z, vextq_f32(z, z, 1)), 0);
}
inline int32_t sum_lanes(I x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.q[0], x.q[2]), vaddq_s32(x.q[1], x.q[3])));
}
inline void narrow(I x, int8_t* out) {
    for (int i = 0; i < 2; ++i) {
        const int16x8_t words = vcombine_s16(vmovn_s32(x.q[2 * i]), vmovn_s32(x.q[2 * i + 1]));
        vst1_s8(out + 8 * i, vmovn_s16(words));
    }
}

// Transposes the 4 x 4 matrices of which lane group g of the four vectors holds the rows.
inline void transpose4(V& a, V& b, V& c, V& d) {
    WAGER_EACH {
        const float32x4_t even0 = vtrn1q_f32(a.q[i], b.q[i]), odd0 = vtrn2q_f32(a.q[i], b.q[i]);
        const float32x4_t even1 = vtrn1q_f32(c.q[i], d.q[i]), odd1 = vtrn2q_f32(c.q[i], d.q[i]);
        a.q[i] = vcombine_f32(vget_low_f32(even0), vget_low_f32(even1));
        b.q[i] = vcombine_f32(vget_low_f32(odd0), vget_low_f32(odd1));
        c.q[i] = vcombine_f32(vget_high_f32(even0), vget_high_f32(even1));
        d.q[i] = vcombine_f32(vget_high_f32(odd0), vget_high_f32(odd1));
    }
}

inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// One step of the integer dot product at its fastest: how many products it adds to the sums.
constexpr int INT8_PRODUCTS = 64;
inline I multiply_add_int8(I sum, I a, I b) {
    WAGER_EACH sum.q[i] = vdotq_s32(sum.q[i], vreinterpretq_s8_s32(a.q[i]),
                                    vreinterpretq_s8_s32(b.q[i]));
    return sum;
}

constexpr int INT4_PRODUCTS = INT8_PRODUCTS;
inline I multiply_add_int4(I sum, I a, I b) { return multiply_add_int8(sum, a, b); }

// int8: one word holds four consecutive k of one row.
constexpr int QUAD_WORDS = 1;
inline void pack_quad(const int8_t* q, uint32_t* out, int64_t) { std::memcpy(out, q, 4); }

// Weights lose their offset on the way, so `start`, which would undo it, is not needed.
template <int R, class Use>
inline void group_dots(const uint8_t* w, const uint32_t* x, const int32_t*, Use use) {
    const I offset = set1_int(int32_t(0x80808080));
    I dot[R];
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) dot[r] = set1_int(0);
    WAGER_UNROLL
    for (int quad = 0; quad < 8; ++quad) {
        const I weights = bit_xor(load_int(w + quad * 64), offset);
        WAGER_UNROLL
        for (int r = 0; r < R; ++r)
            dot[r] = multiply_add_int8(dot[r], weights, set1_int(int32_t(x[quad * R + r])));
    }
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) use(r, dot[r]);
}

// int4: levels are at most 15, so they are the same as signed bytes.
template <int R, class Use>
inline void nibble_dots(const uint8_t* w, const uint32_t* x, Use use) {
    const uint8x16_t mask = vdupq_n_u8(15);
    I dot[R];
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) dot[r] = set1_int(0);
    WAGER_UNROLL
    for (int line = 0; line < 4; ++line) {
        const I both = load_int(w + line * 64);
        I first, second;
        WAGER_EACH {
            const uint8x16_t bytes = vreinterpretq_u8_s32(both.q[i]);
            first.q[i] = vreinterpretq_s32_u8(vandq_u8(bytes, mask));
            second.q[i] = vreinterpretq_s32_u8(vshrq_n_u8(bytes, 4));
        }
        const uint32_t* words = x + line * 2 * R;
        WAGER_UNROLL
        for (int r = 0; r < R; ++r) {
            dot[r] = multiply_add_int8(dot[r], first, set1_int(int32_t(words[r])));
            dot[r] = multiply_add_int8(dot[r], second, set1_int(int32_t(words[R + r])));
        }
    }
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) use(r, dot[r]);
}

#undef WAGER_EACH

}  // namespace wager::WAGER_ISA
