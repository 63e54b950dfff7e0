// A suffix automaton over tokens (Blumer et al., "The smallest automaton recognizing the subwords
// of a text", 1985), grown token by token, over one text or several.
//
// A state stands for all substrings that end at the same set of positions; its suffix link leads to
// the longest proper suffix that ends in more places. So the longest suffix that occurred before is
// read off the newest state, whatever its length, in memory linear in the text. Transitions are
// keyed by (state, token), never by a hash of the content, so a match cannot be wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace wager {

// `Note` is what a user keeps per state; when a state is split both halves have it.
template <class Note>
class SuffixAutomaton {
  public:
    static constexpr int32_t NONE = -1;
    static constexpr int32_t ROOT = 0;
    static constexpr int32_t MAX_TOKENS = 1 << 29;  // N tokens make at most 2N states

    SuffixAutomaton() { states_.push_back({0, NONE, NONE, NONE, NONE, Note{}}); }

    // A substring: its last `length` tokens are those of `state`.
    struct Place {
        int32_t state = ROOT;
        int32_t length = 0;
    };

    // The tokens that follow begin another text.
    void begin_text() { newest_ = ROOT; }

    // Adds a token to the text; `note` is for the state of the whole text, if that is new. Returns
    // the state of the whole text, amortised O(1). Throws std::invalid_argument on a negative id,
    // std::length_error past MAX_TOKENS.
    int32_t append(int32_t token, const Note& note) {
        if (token < 0)
            throw std::invalid_argument("token id " + std::to_string(token) + " is negative");
        if (tokens_ == MAX_TOKENS) throw std::length_error("the index of a text is full");
        ++tokens_;
        if (const int32_t* seen = find(newest_, token)) {
            // Only where an earlier text said the same.
            const int32_t old = *seen;
            const bool whole = states_[old].length == states_[newest_].length + 1;
            return newest_ = whole ? old : split(newest_, token, old);
        }
        return newest_ = extend(token, note);
    }

    int32_t length(int32_t state) const { return states_[state].length; }
    int32_t link(int32_t state) const { return states_[state].link; }
    Note& note(int32_t state) { return states_[state].note; }
    const Note& note(int32_t state) const { return states_[state].note; }
    int32_t tokens() const { return tokens_; }

    std::size_t bytes() const {
        return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
               slots_.capacity() * sizeof(int32_t);
    }

    // Where the transition's target is kept, null if there is none. Valid until the next append().
    const int32_t* find(int32_t state, int32_t token) const {
        const State& s = states_[state];
        if (s.token == token) return &s.target;
        if (s.more == NONE) return nullptr;
        const int32_t edge = slots_[slot_of(state, token)];
        return edge == NONE ? nullptr : &edges_[edge].target;
    }

    // The same substring, in the state that holds it now: an append() may have split the old one.
    void settle(Place& place) const {
        if (place.length == 0) place.state = ROOT;
        while (place.state != ROOT && length(link(place.state)) >= place.length)
            place.state = link(place.state);
    }

    // No more than its last `longest` tokens.
    void shorten(Place& place, int32_t longest) const {
        if (place.length <= longest) return;
        place.length = longest;
        settle(place);
    }

  private:
    struct State {
        int32_t length;  // of the longest substring of the state
        int32_t link;    // suffix link, NONE for the root
        int32_t token;   // the first transition, kept here: most states have no other
        int32_t target;
        int32_t more;  // first of the further transitions in edges_
        Note note;
    };
    struct Edge {
        int32_t state, token, target;
        int32_t next;  // further transition of the same state
    };
    static constexpr std::size_t FIRST_SLOTS = 64;

    // Adds the state of the whole text and gives every suffix that could not be continued by
    // `token` its transition there.
    int32_t extend(int32_t token, const Note& note) {
        const auto leaf = static_cast<int32_t>(states_.size());
        states_.push_back({states_[newest_].length + 1, ROOT, NONE, NONE, NONE, note});
        int32_t from = newest_;
        const int32_t* target = nullptr;
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
        return leaf;
    }

    // `old` holds substrings that now end in different sets of positions: the shorter ones, up to
    // the one that leads here from `from`, move to a state of their own.
    int32_t split(int32_t from, int32_t token, int32_t old) {
        const auto upper = static_cast<int32_t>(states_.size());
        const State copy = states_[old];
        states_.push_back(copy);
        states_[upper].length = states_[from].length + 1;
        states_[upper].more = NONE;
        for (int32_t e = states_[old].more; e != NONE; e = edges_[e].next)
            connect(upper, edges_[e].token, edges_[e].target);
        states_[old].link = upper;
        for (int32_t* target; from != NONE && (target = slot(from, token)) && *target == old;
             from = states_[from].link)
            *target = upper;
        return upper;
    }

    int32_t* slot(int32_t state, int32_t token) {
        return const_cast<int32_t*>(find(state, token));
    }

    // Adds a transition that is not there yet.
    void connect(int32_t state, int32_t token, int32_t target) {
        State& s = states_[state];
        if (s.token == NONE) {
            s.token = token;
            s.target = target;
            return;
        }
        if (2 * (edges_.size() + 1) > slots_.size()) grow_slots();
        const std::size_t slot = slot_of(state, token);
        slots_[slot] = static_cast<int32_t>(edges_.size());
        edges_.push_back({state, token, target, s.more});
        s.more = slots_[slot];
    }

    std::size_t slot_of(int32_t state, int32_t token) const {
        uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 |
                       static_cast<uint32_t>(token);
        key ^= key >> 33;  // the finaliser of MurmurHash3
        key *= 0xff51afd7ed558ccdULL;
        key ^= key >> 33;
        key *= 0xc4ceb9fe1a85ec53ULL;
        key ^= key >> 33;
        const std::size_t mask = slots_.size() - 1;
        std::size_t slot = key & mask;
        while (slots_[slot] != NONE) {
            const Edge& edge = edges_[slots_[slot]];
            if (edge.state == state && edge.token == token) break;
            slot = (slot + 1) & mask;
        }
        return slot;
    }

    void grow_slots() {
        slots_.assign(slots_.empty() ? FIRST_SLOTS : 2 * slots_.size(), NONE);
        for (std::size_t e = 0; e < edges_.size(); ++e)
            slots_[slot_of(edges_[e].state, edges_[e].token)] = static_cast<int32_t>(e);
    }

    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> slots_;  // open addressing over edges_, a power of two, at most half full
    int32_t newest_ = ROOT;       // the state of the whole text
    int32_t tokens_ = 0;          // of all texts
};

}  // namespace wager
