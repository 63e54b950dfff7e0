// Elementary functions and row-wise kernels over sixteen lanes. Each is one fixed sequence of
// correctly rounded operations, so every instruction set gives the same bits.
#pragma once

#include "isa.h"

namespace wager::WAGER_ISA {

// The first n values of a vector, n >= 1; the other lanes are 0 or left alone.
inline V load_part(const float* p, int64_t n) {
    if (n >= LANES) return load(p);
    float buffer[LANES] = {};
    std::memcpy(buffer, p, size_t(n) * 4);
    return load(buffer);
}
inline void store_part(float* p, V x, int64_t n) {
    if (n >= LANES) return store(p, x);
    float buffer[LANES];
    store(buffer, x);
    std::memcpy(p, buffer, size_t(n) * 4);
}

// exp(x) with a relative error of about 1e-7; 0 below -87, and x is taken as 88 above that.
// Range reduction by Cody and Waite, polynomial of the Cephes library. Adding 1.5 * 2^23 rounds to a
// whole number and leaves it in the low bits, from where a shift takes it to the exponent.
inline V exp(V x) {
    const V y = min(x, set1(88.0f)), whole = set1(12582912.0f);
    const V shifted = fma(y, set1(1.44269504088896341f), whole);
    const V n = sub(shifted, whole);
    V r = fma(n, set1(-0.693359375f), y);
    r = fma(n, set1(2.12194440e-4f), r);
    V p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set1(1.0f)));
    const V result = as_float(add(as_int(p), shift_left<23>(as_int(shifted))));
    return select(less(x, set1(-87.0f)), set1(0.0f), result);
}

// log(2^e * (1 + f)) for 1 + f between sqrt(1/2) and sqrt(2); polynomial of the Cephes library.
inline V log_reduced(V f, V e) {
    const V z = mul(f, f);
    V p = set1(7.0376836292e-2f);
    p = fma(p, f, set1(-1.1514610310e-1f));
    p = fma(p, f, set1(1.1676998740e-1f));
    p = fma(p, f, set1(-1.2420140846e-1f));
    p = fma(p, f, set1(1.4249322787e-1f));
    p = fma(p, f, set1(-1.6668057665e-1f));
    p = fma(p, f, set1(2.0000714765e-1f));
    p = fma(p, f, set1(-2.4999993993e-1f));
    p = fma(p, f, set1(3.3333331174e-1f));
    p = mul(mul(p, f), z);
    p = fma(e, set1(-2.12194440e-4f), p);
    p = fma(set1(-0.5f), z, p);
    return fma(e, set1(0.693359375f), add(f, p));
}

// x, positive and normal, as 2^e * m with m in [sqrt(1/2), sqrt(2)).
inline V mantissa(V x, V& e) {
    const I raw = as_int(x);
    V m = as_float(bit_or(bit_and(raw, set1_int(0x007fffff)), set1_int(0x3f000000)));
    e = to_float(sub(shift_right<23>(raw), set1_int(126)));
    const M low = less(m, set1(0.707106781186547524f));
    e = select(low, sub(e, set1(1.0f)), e);
    return select(low, add(m, m), m);
}
inline V log(V x) {
    V e;
    const V m = mantissa(x, e);
    return log_reduced(sub(m, set1(1.0f)), e);
}

inline float rms_scale(const float* x, float eps, int64_t n) {
    V sum = set1(0.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        const V v = load_part(x + i, n - i);
        sum = fma(v, v, sum);
    }
    return 1.0f / __builtin_sqrtf(sum_lanes(sum) / float(n) + eps);
}
inline void apply_norm(const float* x, float scale, const float* weight, float* out, int64_t n) {
    const V s = set1(scale);
    for (int64_t i = 0; i < n; i += LANES)
        store_part(out + i, mul(mul(load_part(x + i, n - i), s), load_part(weight + i, n - i)),
                   n - i);
}

inline void add_scaled(float* x, const float* y, float factor, int64_t n) {
    const V f = set1(factor);
    for (int64_t i = 0; i < n; i += LANES)
        store_part(x + i, fma(load_part(y + i, n - i), f, load_part(x + i, n - i)), n - i);
}

// x * sigmoid(x), or GELU in its tanh form: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
inline V activate(V x, bool gelu) {
    V inner = x;
    if (gelu) {
        const V cubic = mul(mul(x, x), set1(0.0713548162726f));
        inner = mul(x, add(cubic, set1(1.5957691216057f)));
    }
    return div(x, add(set1(1.0f), exp(sub(set1(0.0f), inner))));
}

// cap * tanh(x / cap).
inline V capped(V x, float cap) {
    const V grown = exp(mul(x, set1(2.0f / cap)));
    const V share = div(set1(2.0f), add(grown, set1(1.0f)));
    return mul(sub(set1(1.0f), share), set1(cap));
}
inline void rotate(const float* x, const float* cosine, const float* sine, float* out,
                   int64_t half) {
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t n = half - i < LANES ? half - i : LANES;
        const V a = load_part(x + i, n), b = load_part(x + half + i, n);
        const V c = load_part(cosine + i, n), s = load_part(sine + i, n);
        const V minus_b = sub(set1(0.0f), b);
        store_part(out + i, fma(a, c, mul(minus_b, s)), n);
        store_part(out + half + i, fma(b, c, mul(a, s)), n);
    }
}

inline void to_half(const float* x, uint16_t* out, int64_t n) {
    uint16_t buffer[LANES];
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t part = n - i < LANES ? n - i : LANES;
        store_half(buffer, load_part(x + i, part));
        std::memcpy(out + i, buffer, size_t(part) * 2);
    }
}

inline void pack_f32(const float* x, int64_t stride, int64_t rows, int64_t n, uint32_t* tile) {
    if (rows == 1) {
        std::memcpy(tile, x, size_t(n) * 4);
        return;
    }
    for (int64_t i = 0; i < n; ++i, ++x, tile += rows)
        for (int64_t row = 0; row < rows; ++row) std::memcpy(tile + row, x + row * stride, 4);
}

// Activations beside quantised weights: 8 bits, symmetric, one scale per row and group of 32.
struct QuantisedGroup {
    float scale;
    int32_t sum;        // of q
    int8_t q[GROUP];
};

inline QuantisedGroup quantise(const float* x) {
    const V a = load(x), b = load(x + LANES);
    const float largest = max_lanes(max(abs(a), abs(b)));
    QuantisedGroup group;
    // Below this the scale would leave the normal range; such a group is zero to any purpose.
    group.scale = largest > 1e-30f ? largest / 127.0f : 0.0f;
    const V inverse = set1(group.scale > 0.0f ? 1.0f / group.scale : 0.0f);
    const V low = set1(-127.0f), high = set1(127.0f);
    const I qa = to_int(max(min(mul(a, inverse), high), low));
    const I qb = to_int(max(min(mul(b, inverse), high), low));
    group.sum = sum_lanes(add(qa, qb));
    narrow(qa, group.q);
    narrow(qb, group.q + LANES);
    return group;
}

// Per group the tile holds the scales of all rows, their sums of -128 * q, then the quads.
inline void pack_int8(const float* x, int64_t stride, int64_t rows, int64_t n, uint32_t* tile) {
    for (; n > 0; n -= GROUP, x += GROUP, tile += (2 + 8 * QUAD_WORDS) * rows)
        for (int64_t row = 0; row < rows; ++row) {
            const QuantisedGroup group = quantise(x + row * stride);
            const int32_t start = -128 * group.sum;
            std::memcpy(tile + row, &group.scale, 4);
            std::memcpy(tile + rows + row, &start, 4);
            uint32_t* quads = tile + 2 * rows + row;
            for (int quad = 0; quad < 8; ++quad, quads += QUAD_WORDS * rows)
                pack_quad(group.q + quad * 4, quads, rows);
        }
}

// Per group the tile holds the scales of all rows, what their q add up to at that scale, then the
// quads as bytes.
inline void pack_int4(const float* x, int64_t stride, int64_t rows, int64_t n, uint32_t* tile) {
    for (; n > 0; n -= GROUP, x += GROUP, tile += (2 + 8) * rows)
        for (int64_t row = 0; row < rows; ++row) {
            const QuantisedGroup group = quantise(x + row * stride);
            const float total = float(group.sum) * group.scale;
            std::memcpy(tile + row, &group.scale, 4);
            std::memcpy(tile + rows + row, &total, 4);
            uint32_t* quads = tile + 2 * rows + row;
            for (int quad = 0; quad < 8; ++quad, quads += rows)
                std::memcpy(quads, group.q + quad * 4, 4);
        }
}

}  // namespace wager::WAGER_ISA
