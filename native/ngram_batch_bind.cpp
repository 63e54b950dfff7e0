#include <nanobind/nanobind.h>

#include <vector>

#include "arrays.h"
#include "ngram_batch.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace wager;

namespace {

using OutInts1 = View<int32_t, 1>;
using OutInts2 = View<int32_t, 2>;

void lookup(Ints2 tokens, Ints1 lengths, Ints1 limits, int32_t shortest, int32_t longest,
            bool recent, bool cyclic, OutInts2 drafts, OutInts1 counts, OutInts1 matches) {
    const size_t rows = tokens.shape(0), columns = tokens.shape(1), k = drafts.shape(1);
    require(columns < size_t(1) << 30 && k < size_t(1) << 30, "ngram_lookup: rows are too long");
    require(shortest >= 1 && longest >= shortest,
            "ngram_lookup: lookup lengths must satisfy 1 <= min <= max");
    for (const size_t n : {lengths.shape(0), limits.shape(0), drafts.shape(0), counts.shape(0),
                           matches.shape(0)})
        require(n == rows, "ngram_lookup: all arrays must have as many rows as tokens");
    for (size_t r = 0; r < rows; ++r) {
        const int32_t length = lengths.data()[r], limit = limits.data()[r];
        require(length >= 0 && size_t(length) <= columns, "ngram_lookup: a length is out of range");
        require(limit >= 0 && size_t(limit) <= k, "ngram_lookup: a limit is out of range");
    }
    const NgramOptions options{shortest, longest, recent, cyclic};
    const nb::gil_scoped_release unlocked;
    std::vector<int32_t> scratch;
    for (size_t r = 0; r < rows; ++r) {
        const int32_t* text = tokens.data() + r * columns;
        const int32_t length = lengths.data()[r], limit = limits.data()[r];
        int32_t* draft = drafts.data() + r * k;
        const NgramMatch match =
            limit > 0 ? scan_for_match(text, length, options, scratch) : NgramMatch{};
        const int32_t count = copy_draft(text, length, match, cyclic, limit, draft);
        for (size_t i = size_t(count); i < k; ++i) draft[i] = -1;
        counts.data()[r] = count;
        matches.data()[r] = match.length;
    }
}

}  // namespace

void bind_ngram_batch(nb::module_& m) {
    m.def("ngram_lookup", &lookup, exact("tokens"), exact("lengths"), exact("limits"),
          "shortest"_a, "longest"_a, "recent"_a, "cyclic"_a, exact("drafts"), exact("counts"),
          exact("matches"));
}
