// Weights into panels, once, at load.
#pragma once

#include "isa.h"

namespace wager {

enum class PackResult { ok, not_finite, too_large };

// Rows [first_row, first_row + rows) of an [n, k] matrix, row-major, into `out`. A row that completes
// the matrix also fills the rest of the last panel with zeros.
PackResult pack_rows(uint8_t* out, const float* weight, int64_t first_row, int64_t rows, int64_t n,
                     int64_t k, WeightKind kind);

// Row `row` of the packed matrix, as float32 [k].
void unpack_row(const uint8_t* data, int64_t row, int64_t k, WeightKind kind, float* out);

}  // namespace wager
