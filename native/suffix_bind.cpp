#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>

#include "suffix.h"
#include "tuples.h"

namespace nb = nanobind;

namespace wager {
namespace {

void make_table(SuffixTable* self, int32_t depth, int32_t max_requests, double factor,
                double offset, double min_probability, size_t max_bytes) {
    if (depth < 1 || max_requests < 0 || factor < 0 || offset < 0)
        throw std::invalid_argument("depth must be at least 1, the other bounds at least 0");
    const SuffixOptions options{depth, max_requests, factor, offset, min_probability, max_bytes};
    new (self) SuffixTable(options);
}

nb::list propose(SuffixTable& table, const std::vector<int64_t>& requests,
                 const std::vector<int32_t>& lengths, const std::vector<int32_t>& limits) {
    if (requests.size() != lengths.size() || requests.size() != limits.size())
        throw std::invalid_argument("one length and one limit per request");
    nb::list drafts;
    for (size_t i = 0; i < requests.size(); ++i) {
        const Continuation found = table.propose(requests[i], lengths[i], limits[i]);
        drafts.append(nb::make_tuple(as_tuple(found.tokens), found.match, found.past, found.score));
    }
    return drafts;
}

nb::tuple look_up(const SuffixTable& table, const std::vector<int32_t>& end,
                  const std::string& tenant, int32_t shortest, int32_t limit) {
    const Continuation found = table.look_up(end, tenant, shortest, limit);
    return nb::make_tuple(as_tuple(found.tokens), found.tokens.empty() ? 0 : found.match);
}

}  // namespace
}  // namespace wager

void bind_suffix(nb::module_& m) {
    using wager::SuffixTable;
    nb::class_<SuffixTable>(m, "SuffixIndex")
        .def("__init__", &wager::make_table, nb::arg("depth"), nb::arg("max_requests"),
             nb::arg("factor"), nb::arg("offset"), nb::arg("min_probability"),
             nb::arg("max_bytes"))
        .def("start", &SuffixTable::start, nb::arg("request"), nb::arg("prompt"),
             nb::arg("tenant"))
        .def("observe", &SuffixTable::observe, nb::arg("request"), nb::arg("tokens"))
        .def("propose", &wager::propose, nb::arg("requests"), nb::arg("lengths"),
             nb::arg("limits"))
        .def("look_up", &wager::look_up, nb::arg("end"), nb::arg("tenant"), nb::arg("shortest"),
             nb::arg("limit"))
        .def("release", &SuffixTable::release, nb::arg("request"))
        .def("learn", &SuffixTable::learn, nb::arg("answer"), nb::arg("tenant"))
        .def("clear", &SuffixTable::clear)
        .def("__len__", &SuffixTable::size)
        .def_prop_ro("bytes", &SuffixTable::bytes)
        .def_prop_ro("past_bytes", &SuffixTable::past_bytes)
        .def_prop_ro("past_tokens", &SuffixTable::past_tokens)
        .def_prop_ro("past_answers", &SuffixTable::past_answers);
}
