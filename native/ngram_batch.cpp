#include "ngram_batch.h"

#include <algorithm>

namespace wager {

namespace {

// Tokens that are compared at once: the compiler makes vector instructions of it.
constexpr int32_t BLOCK = 16;

// The first i >= from with back[-i] == *back, or size.
int32_t next_equal(const int32_t* back, int32_t from, int32_t size) {
    const int32_t wanted = *back;
    for (; from + BLOCK <= size; from += BLOCK) {
        const int32_t* block = back - from - BLOCK + 1;
        int32_t found = 0;
        for (int32_t i = 0; i < BLOCK; ++i) found |= block[i] == wanted;
        if (found) break;
    }
    while (from < size && back[-from] != wanted) ++from;
    return from;
}

}  // namespace

// The Z algorithm (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, 1.4) on the text
// read backwards, where a suffix of the text is a prefix: at each i, how many of the first tokens
// come again from i on, counted up to `longest`. That bound keeps [left, right), the repeat that
// reaches furthest, at most `longest` wide, so that no more counts than that are looked back at.
NgramMatch scan_for_match(const int32_t* tokens, int32_t size, const NgramOptions& options,
                          std::vector<int32_t>& scratch) {
    NgramMatch best;
    const int32_t longest = std::min(options.longest, size - 1);
    if (longest < options.shortest) return best;
    const int32_t* back = tokens + size - 1;  // back[-i] is token i of the text read backwards
    scratch.assign(longest, 0);
    int32_t left = 0, right = 0;
    for (int32_t i = 1; i < size; ++i) {
        if (i >= right && (i = next_equal(back, i, size)) == size) break;
        int32_t n = i < right ? std::min(scratch[i - left], right - i) : 0;
        if (i + n >= right) {
            while (n < longest && i + n < size && back[-(i + n)] == back[-n]) ++n;
            left = i;
            right = i + n;
        }
        if (i < longest) scratch[i] = n;
        if (n > best.length || (!options.recent && n == best.length)) best = {n, size - 1 - i};
        if (options.recent && n == longest) break;
    }
    return best.length >= options.shortest ? best : NgramMatch{};
}

}  // namespace wager
