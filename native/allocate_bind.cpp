#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "allocate.h"
#include "arrays.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace wager;

namespace {

using Doubles = View<const double, 1>;
using Lengths = std::vector<int64_t>;

ByRows by_rows(const Doubles& rows, const Doubles& values) {
    require(rows.shape(0) > 0 && rows.shape(0) == values.shape(0), "allocate: no step times");
    return {rows.data(), values.data(), int64_t(rows.shape(0))};
}

std::tuple<Lengths, double, double, double, double, double> answer(
    const std::vector<std::vector<double>>& survival, const std::vector<double>& contexts,
    Doubles rows, Doubles ms, std::tuple<double, double, double, double> curve,
    Doubles correction_rows, Doubles correction_log, int64_t requests, int64_t most,
    double plain_ms, double spent_ms, double room, double margin) {
    const ByRows table = by_rows(rows, ms), correction = by_rows(correction_rows, correction_log);
    require(contexts.size() == survival.size(), "allocate: one context per offer");
    require(requests > 0 && plain_ms > 0.0, "allocate: a step has requests and takes time");
    const auto [slope, beside, base, attend] = curve;
    const StepCurve times{table, slope, beside, base, attend, correction};
    const AllocateQuestion question{requests, most, plain_ms, spent_ms, room, margin};
    const AllocateAnswer found = allocate(survival, contexts, times, question);
    return {found.lengths, found.gain, found.risk, found.tokens, found.ms, found.wanted};
}

}  // namespace

void bind_allocate(nb::module_& m) {
    m.def("allocate", &answer, "survival"_a, "contexts"_a, exact("rows"), exact("ms"), "curve"_a,
          exact("correction_rows"), exact("correction_log"), "requests"_a, "most"_a, "plain_ms"_a,
          "spent_ms"_a, "room"_a, "margin"_a);
}
