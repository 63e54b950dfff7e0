// What suffix decoding drafts from (Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for
// Emerging AI Applications", 2024): how often which token followed which text.
//
// Counted texts are a suffix automaton whose states count. The paper's structure is a suffix tree;
// the automaton holds the same counts in fewer nodes, and a request's place in it moves with each
// token instead of being searched anew. What was said by past requests is kept in two generations:
// when the younger one is full it takes the place of the older one, which is dropped whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "automaton.h"

namespace wager {

struct SuffixOptions {
    int32_t depth;         // counted substrings have at most this many tokens, contexts one less
    int32_t max_requests;  // past answers that are kept, 0: none
    double factor;         // a draft holds at most factor * match + offset tokens
    double offset;
    double min_probability;  // of a draft's last token, given the context
    std::size_t max_bytes;   // of what is kept of past answers
};

// A draft: the most frequent continuation of a context, token by token.
struct Continuation {
    std::vector<int32_t> tokens;
    int32_t match = 0;   // tokens of the context
    double score = 0.0;  // expected number of right tokens
    bool past = false;   // found among past answers
};

// Texts, with the counts of their substrings of at most `depth` tokens.
class CountedTexts {
  public:
    explicit CountedTexts(int32_t depth) : depth_(depth) {}

    // The tokens that follow begin another text.
    void begin_text();

    // Counts every substring that ends with this token. O(depth). Throws as
    // SuffixAutomaton::append does.
    void append(int32_t token);

    struct Count {
        int32_t seen = 0;      // occurrences
        int32_t followed = 0;  // occurrences with a token behind them
        int32_t next = -1;     // the token that most often followed; of several the latest
    };

    // A context: at most depth - 1 tokens that occur here. An append() makes it invalid.
    using Place = SuffixAutomaton<Count>::Place;

    // To the longest suffix of the context and `token` that is a context here.
    void move(Place& place, int32_t token) const;

    // The end of the text that is being appended to, as a context.
    Place end() const;

    // Puts the best continuation of the place's contexts into `best` if its score is higher.
    void propose(const Place& place, int32_t limit, const SuffixOptions& options,
                 Continuation& best) const;

    // What most often followed the longest of the place's contexts that has `shortest` tokens or
    // more and that something followed.
    Continuation longest(const Place& place, int32_t shortest, int32_t limit) const;

    std::size_t bytes() const { return automaton_.bytes(); }
    int32_t tokens() const { return automaton_.tokens(); }

  private:
    void follow(int32_t state, int32_t budget, double min_probability, Continuation& out) const;

    int32_t depth_;
    SuffixAutomaton<Count> automaton_;
    Place window_;  // the suffix of at most `depth` tokens
};

// Past answers of one tenant.
class PastAnswers {
  public:
    explicit PastAnswers(int32_t depth) : depth_(depth), young_(fresh()) {}

    // `stamp` is new with every change to any tenant's answers.
    void add(const std::vector<int32_t>& answer, const SuffixOptions& options, int64_t stamp);
    void drop_older() { old_.reset(); }
    bool has_older() const { return old_ != nullptr; }

    // A request's contexts here, as they stand behind its first `tokens` tokens.
    struct Places {
        CountedTexts::Place young, old;
        int64_t stamp = -1;
        std::size_t tokens = 0;
    };

    // As CountedTexts::propose, behind the whole text; `places` is kept for the next time.
    void propose(Places& places, const std::vector<int32_t>& text, int32_t limit,
                 const SuffixOptions& options, Continuation& best) const;

    // As CountedTexts::longest, behind `end`; of equally long contexts that of the younger answers.
    Continuation longest(const std::vector<int32_t>& end, int32_t shortest, int32_t limit) const;

    std::size_t bytes() const { return young_->bytes() + (old_ ? old_->bytes() : 0); }
    int64_t tokens() const { return young_->tokens() + int64_t(old_ ? old_->tokens() : 0); }
    int32_t answers() const { return in_young_ + (old_ ? in_old_ : 0); }
    int64_t stamp() const { return stamp_; }

  private:
    std::unique_ptr<CountedTexts> fresh() const { return std::make_unique<CountedTexts>(depth_); }

    int32_t depth_;
    std::unique_ptr<CountedTexts> young_, old_;
    int32_t in_young_ = 0, in_old_ = 0;
    int64_t stamp_ = 0;
};

// The texts of all requests, and the past answers of all tenants.
class SuffixTable {
  public:
    explicit SuffixTable(const SuffixOptions& options) : options_(options) {}
    // What is kept of past answers cannot be copied, which the maps in between do not show.
    SuffixTable(const SuffixTable&) = delete;
    SuffixTable& operator=(const SuffixTable&) = delete;

    // Throws std::invalid_argument if the request is known already.
    void start(int64_t request, const std::vector<int32_t>& prompt, const std::string& tenant);

    // Throws std::invalid_argument if the request is unknown.
    void observe(int64_t request, const std::vector<int32_t>& tokens);

    // Throws std::invalid_argument where `length` is not the number of tokens observed.
    Continuation propose(int64_t request, int32_t length, int32_t limit);

    // Forgets a request; its answer is kept for later ones of its tenant.
    void release(int64_t request);

    // What most often followed the longest end of a text (of at least `shortest` >= 1 tokens) that
    // occurs among the tenant's past answers. Throws std::invalid_argument.
    Continuation look_up(const std::vector<int32_t>& end, const std::string& tenant,
                         int32_t shortest, int32_t limit) const;

    // Keeps an answer that no request of this table gave.
    void learn(const std::vector<int32_t>& answer, const std::string& tenant);

    void clear();

    std::size_t size() const { return requests_.size(); }
    std::size_t bytes() const;       // of the requests
    std::size_t past_bytes() const { return past_bytes_; }
    int64_t past_tokens() const;
    int64_t past_answers() const;

  private:
    struct Request {
        explicit Request(int32_t depth) : text(depth) {}
        CountedTexts text;
        std::vector<int32_t> tokens;
        std::size_t prompt = 0;
        std::string tenant;
        PastAnswers::Places places;
    };

    void append(Request& request, const std::vector<int32_t>& tokens);
    void keep_within_bounds();

    SuffixOptions options_;
    std::unordered_map<int64_t, Request> requests_;
    std::unordered_map<std::string, PastAnswers> past_;
    std::size_t past_bytes_ = 0;
    int64_t stamp_ = 0;
};

}  // namespace wager
