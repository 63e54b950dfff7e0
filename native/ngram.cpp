#include "ngram.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "tuples.h"

namespace nb = nanobind;

namespace wager {

// Finds the match of the text as it stands, then notes its end as the most recent occurrence of
// every suffix in range. Suffixes with a state of their own that ends only here need no note.
void NgramIndex::append(int32_t token) {
    const int32_t end = size();
    const int32_t leaf = automaton_.append(token, {end});
    tokens_.push_back(token);
    // Splitting moved the window's tokens at most to a suffix link: a transition is the same there.
    window_ = {*automaton_.find(window_.state, token), window_.length + 1};
    window_.length = std::min(window_.length, options_.longest);
    automaton_.settle(window_);
    // Only the leaf's own substrings are new; everything above it ended somewhere before.
    const bool fresh = window_.state == leaf;
    int32_t state = fresh ? automaton_.link(leaf) : window_.state;
    const int32_t n = fresh ? automaton_.length(state) : window_.length;
    match_ = n >= options_.shortest ? NgramMatch{n, automaton_.note(state).end} : NgramMatch{};
    if (options_.recent)
        for (; automaton_.length(state) >= options_.shortest; state = automaton_.link(state))
            automaton_.note(state).end = end;
}

int32_t copy_draft(const int32_t* tokens, int32_t size, const NgramMatch& match, bool cyclic,
                   int32_t limit, int32_t* out) {
    if (match.length == 0) return 0;
    const int32_t start = match.end + 1, period = size - start;
    const int32_t count = cyclic ? limit : std::min(limit, period);
    for (int32_t i = 0; i < count; ++i) out[i] = i < period ? tokens[start + i] : out[i - period];
    return count;
}

void NgramIndex::draft(int32_t limit, std::vector<int32_t>& out) const {
    limit = std::max(limit, 0);
    out.resize(limit);
    out.resize(copy_draft(tokens_.data(), size(), match_, options_.cyclic, limit, out.data()));
}

namespace {

// The texts of all requests; what Python sees.
class NgramTable {
  public:
    NgramTable(int32_t shortest, int32_t longest, bool recent, bool cyclic)
        : options_{shortest, longest, recent, cyclic} {
        if (shortest < 1 || longest < shortest)
            throw std::invalid_argument("lookup lengths must satisfy 1 <= min <= max");
    }

    void observe(int64_t request, const std::vector<int32_t>& tokens) {
        NgramIndex& index = texts_.try_emplace(request, options_).first->second;
        for (int32_t token : tokens) index.append(token);
    }

    nb::list propose(const std::vector<int64_t>& requests, const std::vector<int32_t>& lengths,
                     const std::vector<int32_t>& limits) const {
        if (requests.size() != lengths.size() || requests.size() != limits.size())
            throw std::invalid_argument("one length and one limit per request");
        nb::list drafts;
        std::vector<int32_t> draft;
        for (size_t i = 0; i < requests.size(); ++i) {
            const auto found = texts_.find(requests[i]);
            const int32_t size = found == texts_.end() ? 0 : found->second.size();
            if (size != lengths[i])
                throw std::invalid_argument(stale(requests[i], size, lengths[i]));
            draft.clear();
            int32_t matched = 0;
            if (found != texts_.end()) {
                found->second.draft(limits[i], draft);
                matched = found->second.match().length;
            }
            drafts.append(nb::make_tuple(as_tuple(draft), matched));
        }
        return drafts;
    }

    void release(int64_t request) { texts_.erase(request); }
    void clear() { texts_.clear(); }
    size_t size() const { return texts_.size(); }

    size_t bytes() const {
        size_t sum = 0;
        for (const auto& [request, index] : texts_) sum += index.bytes();
        return sum;
    }

  private:
    static std::string stale(int64_t request, int32_t observed, int32_t asked) {
        return "request " + std::to_string(request) + ": observed " + std::to_string(observed) +
               " tokens, asked at " + std::to_string(asked) +
               "; release it and observe its tokens anew";
    }

    NgramOptions options_;
    std::unordered_map<int64_t, NgramIndex> texts_;
};

}  // namespace
}  // namespace wager

void bind_ngram(nb::module_& m) {
    using wager::NgramTable;
    nb::class_<NgramTable>(m, "NgramIndex")
        .def(nb::init<int32_t, int32_t, bool, bool>(), nb::arg("shortest"), nb::arg("longest"),
             nb::arg("recent"), nb::arg("cyclic"))
        .def("observe", &NgramTable::observe, nb::arg("request"), nb::arg("tokens"))
        .def("propose", &NgramTable::propose, nb::arg("requests"), nb::arg("lengths"),
             nb::arg("limits"))
        .def("release", &NgramTable::release, nb::arg("request"))
        .def("clear", &NgramTable::clear)
        .def("__len__", &NgramTable::size)
        .def_prop_ro("bytes", &NgramTable::bytes);
}
