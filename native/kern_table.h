// The table of one instruction set; included last by each isa_*.cpp.
#pragma once

#include "kern_math.h"
#include "kern_attention.h"
#include "kern_probe.h"
#include "kern_product.h"
#include "kern_select.h"

namespace wager::WAGER_ISA {

static_assert(MAX_ROWS_F32 <= MAX_TILE_ROWS && MAX_ROWS_INT8 <= MAX_TILE_ROWS);

constexpr Kernels TABLE = {
    ISA_NAME,
    MAX_ROWS_F32,
    MAX_ROWS_INT8,
    Int8Weights::GROUP_WORDS,
    rms_scale,
    apply_norm,
    pack_f32,
    pack_int8,
    product<FloatWeights>,
    product<Int8Weights>,
    gated_product<FloatWeights>,
    gated_product<Int8Weights>,
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
    probe_f32,
    probe_int8,
};

}  // namespace wager::WAGER_ISA
