// Kernels in plain C++: for every machine, and the check on the others.
#define WAGER_ISA scalar
#include "simd_scalar.h"
#include "kern_table.h"

namespace wager {
const Kernels* scalar_kernels() { return &scalar::TABLE; }
}  // namespace wager
