// n-gram lookup without an index: each text of a batch is scanned from its end.
#pragma once

#include <cstdint>
#include <vector>

#include "ngram.h"

namespace wager {

// The match that NgramIndex finds after appending the same `size` tokens. O(size), less where
// `options.recent` and a match of the full length is near the end. `scratch` is for reuse only.
NgramMatch scan_for_match(const int32_t* tokens, int32_t size, const NgramOptions& options,
                          std::vector<int32_t>& scratch);

}  // namespace wager
