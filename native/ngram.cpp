#include "ngram.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace nb = nanobind;

namespace wager {

namespace {
constexpr int32_t NONE = -1;
constexpr int32_t ROOT = 0;
constexpr int32_t MAX_TOKENS = 1 << 29;  // a text of N tokens has at most 2N states
constexpr size_t FIRST_SLOTS = 64;
}  // namespace

NgramIndex::NgramIndex(const NgramOptions& options) : options_(options) {
    states_.push_back({0, NONE, NONE, NONE, NONE, NONE});
}

size_t NgramIndex::bytes() const {
    return tokens_.capacity() * sizeof(int32_t) + states_.capacity() * sizeof(State) +
           edges_.capacity() * sizeof(Edge) + slots_.capacity() * sizeof(int32_t);
}

void NgramIndex::append(int32_t token) {
    if (token < 0)
        throw std::invalid_argument("token id " + std::to_string(token) + " is negative");
    if (size() >= MAX_TOKENS) throw std::length_error("the n-gram index is full");
    tokens_.push_back(token);
    look_up(extend(token), token);
}

// Adds the state of the whole text and gives every suffix that could not be continued by `token`
// its transition there.
int32_t NgramIndex::extend(int32_t token) {
    const int32_t end = size() - 1;
    const auto leaf = static_cast<int32_t>(states_.size());
    states_.push_back({end + 1, ROOT, end, NONE, NONE, NONE});
    int32_t from = newest_;
    int32_t* target = nullptr;
    while (from != NONE && (target = find(from, token)) == nullptr) {
        connect(from, token, leaf);
        from = states_[from].link;
    }
    if (from != NONE) {
        const int32_t old = *target;
        const bool whole = states_[old].length == states_[from].length + 1;
        const int32_t link = whole ? old : split(from, token, old);
        states_[leaf].link = link;
    }
    newest_ = leaf;
    return leaf;
}

// `old` holds substrings that now end in different sets of positions: the shorter ones, up to the
// one that leads here from `from`, move to a state of their own.
int32_t NgramIndex::split(int32_t from, int32_t token, int32_t old) {
    const auto upper = static_cast<int32_t>(states_.size());
    states_.push_back(states_[old]);
    states_[upper].length = states_[from].length + 1;
    states_[upper].more = NONE;
    for (int32_t e = states_[old].more; e != NONE; e = edges_[e].next)
        connect(upper, edges_[e].token, edges_[e].target);
    states_[old].link = upper;
    for (int32_t* target; from != NONE && (target = find(from, token)) && *target == old;
         from = states_[from].link)
        *target = upper;
    return upper;
}

// Finds the match of the text as it stands, then notes its end as the most recent occurrence of
// every suffix in range. Suffixes with a state of their own that ends only here need no note.
void NgramIndex::look_up(int32_t leaf, int32_t token) {
    const int32_t length = std::min(size(), options_.longest);
    int32_t state = *find(window_, token);
    while (states_[states_[state].link].length >= length) state = states_[state].link;
    window_ = state;
    // Only the leaf's own substrings are new; everything above it ended somewhere before.
    const bool fresh = state == leaf;
    if (fresh) state = states_[leaf].link;
    const int32_t n = fresh ? states_[state].length : length;
    match_ = n >= options_.shortest ? NgramMatch{n, states_[state].end} : NgramMatch{};
    if (options_.recent)
        for (; states_[state].length >= options_.shortest; state = states_[state].link)
            states_[state].end = size() - 1;
}

void NgramIndex::draft(int32_t limit, std::vector<int32_t>& out) const {
    if (match_.length == 0) return;
    const auto first = static_cast<int64_t>(out.size());
    for (int64_t i = 0; i < limit; ++i) {
        const int64_t at = match_.end + 1 + i;
        if (at < size())
            out.push_back(tokens_[at]);
        else if (options_.cyclic)
            out.push_back(out[first + at - size()]);
        else
            break;
    }
}

size_t NgramIndex::slot_of(int32_t state, int32_t token) const {
    uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 |
                   static_cast<uint32_t>(token);
    key ^= key >> 33;  // the finaliser of MurmurHash3
    key *= 0xff51afd7ed558ccdULL;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ULL;
    key ^= key >> 33;
    const size_t mask = slots_.size() - 1;
    size_t slot = key & mask;
    while (slots_[slot] != NONE) {
        const Edge& edge = edges_[slots_[slot]];
        if (edge.state == state && edge.token == token) break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

// Where the transition's target is kept, null if there is none. Valid until the next connect().
int32_t* NgramIndex::find(int32_t state, int32_t token) {
    State& s = states_[state];
    if (s.token == token) return &s.target;
    if (s.more == NONE) return nullptr;
    const int32_t edge = slots_[slot_of(state, token)];
    return edge == NONE ? nullptr : &edges_[edge].target;
}

// Adds a transition that is not there yet.
void NgramIndex::connect(int32_t state, int32_t token, int32_t target) {
    State& s = states_[state];
    if (s.token == NONE) {
        s.token = token;
        s.target = target;
        return;
    }
    if (2 * (edges_.size() + 1) > slots_.size()) grow_slots();
    const size_t slot = slot_of(state, token);
    slots_[slot] = static_cast<int32_t>(edges_.size());
    edges_.push_back({state, token, target, s.more});
    s.more = slots_[slot];
}

void NgramIndex::grow_slots() {
    slots_.assign(slots_.empty() ? FIRST_SLOTS : 2 * slots_.size(), NONE);
    for (size_t e = 0; e < edges_.size(); ++e)
        slots_[slot_of(edges_[e].state, edges_[e].token)] = static_cast<int32_t>(e);
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

    static nb::object as_tuple(const std::vector<int32_t>& tokens) {
        PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(tokens.size()));
        if (tuple == nullptr) throw nb::python_error();
        for (size_t i = 0; i < tokens.size(); ++i)
            PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), PyLong_FromLong(tokens[i]));
        return nb::steal(tuple);
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
