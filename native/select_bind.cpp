#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_select(nb::module_&) {}
