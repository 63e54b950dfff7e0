// Kernels for 64-bit ARM with dot products.
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define WAGER_ISA neon
#include "simd_neon.h"
#include "kern_table.h"

namespace wager {
const Kernels* neon_kernels() { return &neon::TABLE; }
}  // namespace wager
#else
#include "isa.h"

namespace wager {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace wager
#endif
