// The index of an n-gram drafter: for one growing text, the longest suffix that occurred before.
//
// It is a suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a
// text", 1985), built token by token. A state stands for all substrings that end at the same set of
// positions; its suffix link leads to the longest proper suffix that ends in more places. So the
// longest suffix that occurred before is read off the newest state, whatever the range of n, in
// memory linear in the text. Transitions are keyed by (state, token), never by a hash of the
// content, so a match cannot be wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wager {

struct NgramOptions {
    int32_t shortest;  // prompt_lookup_min, >= 1
    int32_t longest;   // prompt_lookup_max, >= shortest
    bool recent;       // the most recent occurrence of the longest match; else the earliest
    bool cyclic;       // go on with the draft itself where the copy runs into the end of the text
};

struct NgramMatch {
    int32_t length = 0;  // of the n-gram, 0: none
    int32_t end = -1;    // index of its last token in the earlier occurrence
};

class NgramIndex {
  public:
    explicit NgramIndex(const NgramOptions& options);

    // Amortised O(1) for the automaton, and with `recent` one write per distinct set of end
    // positions among the suffixes in range: at most longest - shortest + 1, few in ordinary text.
    // Throws std::invalid_argument on a negative id, std::length_error past MAX_TOKENS.
    void append(int32_t token);

    const NgramMatch& match() const { return match_; }
    int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
    std::size_t bytes() const;

    // Appends the draft, at most `limit` tokens, to `out`; nothing where nothing matched.
    void draft(int32_t limit, std::vector<int32_t>& out) const;

  private:
    struct State {
        int32_t length;  // of the longest substring of the state
        int32_t link;    // suffix link, NONE for the root
        int32_t end;     // index of the last token of its first, or most recent, occurrence
        int32_t token;   // the first transition, kept here: most states have no other
        int32_t target;
        int32_t more;  // first of the further transitions in edges_
    };
    struct Edge {
        int32_t state, token, target;
        int32_t next;  // further transition of the same state
    };

    int32_t extend(int32_t token);
    int32_t split(int32_t from, int32_t token, int32_t old);
    void look_up(int32_t leaf, int32_t token);
    int32_t* find(int32_t state, int32_t token);
    void connect(int32_t state, int32_t token, int32_t target);
    void grow_slots();
    std::size_t slot_of(int32_t state, int32_t token) const;

    NgramOptions options_;
    std::vector<int32_t> tokens_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> slots_;  // open addressing over edges_, a power of two, at most half full
    int32_t newest_ = 0;          // the state of the whole text
    int32_t window_ = 0;          // the state of its suffix of min(size, longest) tokens
    NgramMatch match_;
};

}  // namespace wager
