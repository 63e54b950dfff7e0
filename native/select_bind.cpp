#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <tuple>

#include "arrays.h"
#include "select.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace wager;

namespace {

int64_t count(const Floats1& logits) {
    require(logits.shape(0) > 0 && logits.shape(0) < size_t(1) << 30, "logits: wrong size");
    return int64_t(logits.shape(0));
}

int32_t pick(const Ops& ops, Floats1 logits, double temperature, int64_t top_k, double top_p,
               double min_p, uint64_t seed, uint32_t choice, uint32_t position, bool prune) {
    const int64_t n = count(logits);
    // Written so that NaN fails too.
    require(temperature >= 0.0 && top_p > 0.0 && min_p >= 0.0 && min_p <= 1.0,
            "select: temperature, top_p or min_p is out of range");
    const SelectParams params{temperature, top_k, top_p, min_p, seed, choice, position};
    const nb::gil_scoped_release unlocked;
    return select_token(ops.kernels(), logits.data(), n, params, prune);
}

std::vector<double> log_softmax(const Ops& ops, Floats1 logits, const std::vector<int64_t>& ids) {
    const int64_t n = count(logits);
    const double total = log_sum_exp(ops.kernels(), logits.data(), n);
    std::vector<double> result;
    result.reserve(ids.size());
    for (const int64_t id : ids) {
        require(id >= 0 && id < n, "log_softmax: a token id is outside the vocabulary");
        result.push_back(double(logits.data()[id]) - total);
    }
    return result;
}

using Words4 = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;

Words4 philox(const Ops& ops, Words4 counter, std::tuple<uint32_t, uint32_t> key) {
    const auto [c0, c1, c2, c3] = counter;
    const uint32_t in[4] = {c0, c1, c2, c3}, k[2] = {std::get<0>(key), std::get<1>(key)};
    uint32_t out[4];
    ops.kernels().philox(in, k, out);
    return {out[0], out[1], out[2], out[3]};
}

}  // namespace

void bind_select(nb::module_& m) {
    m.def("select", &pick, "ops"_a, exact("logits"), "temperature"_a, "top_k"_a, "top_p"_a,
          "min_p"_a, "seed"_a, "choice"_a, "position"_a, "prune"_a);
    m.def("log_softmax", &log_softmax, "ops"_a, exact("logits"), "ids"_a);
    m.def("philox", &philox);
}
