// The index of an n-gram drafter: for one growing text, the longest suffix that occurred before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "automaton.h"

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

// Writes what followed the match, at most `limit` tokens; returns how many. Where that runs into the
// end of the text, `cyclic` goes on with the draft itself, else the draft ends there.
int32_t copy_draft(const int32_t* tokens, int32_t size, const NgramMatch& match, bool cyclic,
                   int32_t limit, int32_t* out);

class NgramIndex {
  public:
    explicit NgramIndex(const NgramOptions& options) : options_(options) {}

    // Amortised O(1) for the automaton, and with `recent` one write per distinct set of end
    // positions among the suffixes in range: at most longest - shortest + 1, few in ordinary text.
    // Throws as SuffixAutomaton::append does.
    void append(int32_t token);

    const NgramMatch& match() const { return match_; }
    int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
    std::size_t bytes() const { return tokens_.capacity() * sizeof(int32_t) + automaton_.bytes(); }

    // Makes `out` the draft, at most `limit` tokens; empty where nothing matched.
    void draft(int32_t limit, std::vector<int32_t>& out) const;

  private:
    struct Occurrence {
        int32_t end = -1;  // index of the last token of the first, or most recent, one
    };

    NgramOptions options_;
    std::vector<int32_t> tokens_;
    SuffixAutomaton<Occurrence> automaton_;
    SuffixAutomaton<Occurrence>::Place window_;  // the suffix of min(size, longest) tokens
    NgramMatch match_;
};

}  // namespace wager
