#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_ngram(nb::module_&) {}
