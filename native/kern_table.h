// The table of one instruction set; included last by each isa_*.cpp.
#pragma once

#include "kern_math.h"
#include "kern_attention.h"
#include "kern_probe.h"
#include "kern_product.h"
#include "kern_select.h"

namespace wager::WAGER_ISA {

template <class W, WeightKind Kind>
constexpr ProductKernels product_kernels(int64_t (*probe)(int64_t, float*)) {
    static_assert(W::KIND == Kind && W::MAX_ROWS <= MAX_TILE_ROWS);
    return {W::MAX_ROWS, W::words, W::pack, product<W>, gated_product<W>, probe};
}

constexpr Kernels TABLE = {
    ISA_NAME,
    {product_kernels<FloatWeights<float, WeightKind::f32>, WeightKind(0)>(probe_f32),
     product_kernels<Int8Weights, WeightKind(1)>(
         probe_integers<multiply_add_int8, INT8_PRODUCTS>),
     product_kernels<Int4Weights, WeightKind(2)>(
         probe_integers<multiply_add_int4, INT4_PRODUCTS>),
     product_kernels<FloatWeights<Bf16, WeightKind::bf16>, WeightKind(3)>(probe_f32)},
    rms_scale,
    apply_norm,
    add_scaled,
    rotate,
    to_half,
    attend<float>,
    attend<uint16_t>,
    merge,
    finish,
    block_max,
    at_least,
    exp_sum,
    exp_values,
    gumbel_max,
    philox,
    probe_read,
};

}  // namespace wager::WAGER_ISA
