// Which instruction sets this machine can run, and whether their kernels give the known answers.
#pragma once

#include <vector>

#include "isa.h"

namespace wager {

// Compiled in, best first; the last is plain C++.
std::vector<const Kernels*> built_kernels();

// Those of them that the processor and the system support.
std::vector<const Kernels*> usable_kernels();

// Bit for bit the answers of the plain C++ kernels on a small sample of the work.
bool kernels_agree(const Kernels& kernels);

}  // namespace wager
