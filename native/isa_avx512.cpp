// Kernels for AVX-512 with VNNI.
#if defined(__AVX512VNNI__)
#define WAGER_ISA avx512
#include "simd_avx512.h"
#include "kern_table.h"

namespace wager {
const Kernels* avx512_kernels() { return &avx512::TABLE; }
}  // namespace wager
#else
#include "isa.h"

namespace wager {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace wager
#endif
