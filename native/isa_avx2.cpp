// Kernels for AVX2 with FMA and F16C.
#if defined(__AVX2__)
#define WAGER_ISA avx2
#include "simd_avx2.h"
#include "kern_table.h"

namespace wager {
const Kernels* avx2_kernels() { return &avx2::TABLE; }
}  // namespace wager
#else
#include "isa.h"

namespace wager {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace wager
#endif
