// The Python module wager._native: each part of the extension binds itself.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_allocate(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_select(nb::module_& m);
void bind_ngram(nb::module_& m);
void bind_ngram_batch(nb::module_& m);
void bind_suffix(nb::module_& m);
void bind_probe(nb::module_& m);

NB_MODULE(_native, m) {
    bind_allocate(m);
    bind_kernels(m);
    bind_select(m);
    bind_ngram(m);
    bind_ngram_batch(m);
    bind_suffix(m);
    bind_probe(m);
}
