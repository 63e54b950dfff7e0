// Picking one token from one row of logits.
#pragma once

#include <cstdint>

#include "isa.h"

namespace wager {

struct SelectParams {
    double temperature;
    int64_t top_k;
    double top_p, min_p;
    uint64_t seed;
    uint32_t choice, position;
};

constexpr uint32_t PURPOSE_TARGET = 0;

// Throws std::invalid_argument on NaN or +inf, and where nothing can be picked.
int32_t select_token(const Kernels& kernels, const float* logits, int64_t n,
                     const SelectParams& params, bool prune);

// log(sum of exp(logits)); the same errors.
double log_sum_exp(const Kernels& kernels, const float* logits, int64_t n);

}  // namespace wager
