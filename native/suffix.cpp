#include "suffix.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace wager {

namespace {
constexpr int32_t NONE = -1;
constexpr int32_t ROOT = 0;
}  // namespace

void CountedTexts::begin_text() {
    automaton_.begin_text();
    window_ = {};
}

void CountedTexts::append(int32_t token) {
    automaton_.append(token, {});
    automaton_.settle(window_);
    Place next{*automaton_.find(window_.state, token), window_.length + 1};
    automaton_.shorten(next, depth_);
    for (int32_t s = next.state; s != ROOT; s = automaton_.link(s)) ++automaton_.note(s).seen;
    for (int32_t s = window_.state; s != ROOT; s = automaton_.link(s)) {
        Count& count = automaton_.note(s);
        ++count.followed;
        if (count.next == token) continue;
        const int32_t seen = automaton_.note(*automaton_.find(s, token)).seen;
        if (count.next == NONE ||
            seen >= automaton_.note(*automaton_.find(s, count.next)).seen)
            count.next = token;
    }
    window_ = next;
}

void CountedTexts::move(Place& place, int32_t token) const {
    const int32_t* target = automaton_.find(place.state, token);
    while (target == nullptr && place.state != ROOT) {
        place.state = automaton_.link(place.state);
        place.length = automaton_.length(place.state);
        target = automaton_.find(place.state, token);
    }
    if (target == nullptr) return;
    place = {*target, place.length + 1};
    automaton_.shorten(place, depth_ - 1);
}

CountedTexts::Place CountedTexts::end() const {
    Place place = window_;
    automaton_.shorten(place, depth_ - 1);
    return place;
}

void CountedTexts::propose(const Place& place, int32_t limit, const SuffixOptions& options,
                           Continuation& best) const {
    Continuation found;
    int32_t match = place.length;
    for (int32_t s = place.state; s != ROOT; s = automaton_.link(s), match = automaton_.length(s)) {
        const double most = options.factor * match + options.offset;
        const int32_t budget = most < limit ? static_cast<int32_t>(most) : limit;
        // No token adds more than 1, and shorter contexts have no larger budget.
        if (budget <= best.score) break;
        follow(s, budget, options.min_probability, found);
        if (found.score > best.score) {
            found.match = match;
            std::swap(found, best);
        }
    }
}

// Walks on by the most frequent token for as long as the walk's probability suffices.
void CountedTexts::follow(int32_t state, int32_t budget, double min_probability,
                          Continuation& out) const {
    out.tokens.clear();
    out.score = 0.0;
    out.past = false;
    double probability = 1.0;
    for (int32_t i = 0; i < budget; ++i) {
        const Count& count = automaton_.note(state);
        if (count.next == NONE) break;
        const int32_t target = *automaton_.find(state, count.next);
        probability *= double(automaton_.note(target).seen) / double(count.followed);
        if (probability < min_probability) break;
        out.tokens.push_back(count.next);
        out.score += probability;
        // Substrings of more than `depth` tokens are not counted: look at the end of them only.
        state = target;
        while (automaton_.length(automaton_.link(state)) >= depth_ - 1)
            state = automaton_.link(state);
    }
}

Continuation CountedTexts::longest(const Place& place, int32_t shortest, int32_t limit) const {
    Continuation found;
    int32_t match = place.length;
    int32_t s = place.state;
    // A context at the very end of a text may have nothing behind it; its suffixes may.
    while (s != ROOT && automaton_.note(s).next == NONE) {
        s = automaton_.link(s);
        match = automaton_.length(s);
    }
    if (s == ROOT || match < shortest) return found;
    follow(s, limit, 0.0, found);
    found.match = match;
    return found;
}

void PastAnswers::add(const std::vector<int32_t>& answer, const SuffixOptions& options,
                      int64_t stamp) {
    stamp_ = stamp;
    young_->begin_text();
    for (const int32_t token : answer) young_->append(token);
    ++in_young_;
    // So that both generations together never hold more than was asked for.
    if (in_young_ < (options.max_requests + 1) / 2 && young_->bytes() < options.max_bytes / 2)
        return;
    old_ = std::move(young_);
    in_old_ = std::exchange(in_young_, 0);
    young_ = fresh();
}

void PastAnswers::propose(Places& places, const std::vector<int32_t>& text, int32_t limit,
                          const SuffixOptions& options, Continuation& best) const {
    const std::size_t longest = static_cast<std::size_t>(depth_ - 1);
    const std::size_t start = text.size() > longest ? text.size() - longest : 0;
    if (places.stamp != stamp_ || places.tokens < start) places = {{}, {}, stamp_, start};
    for (; places.tokens < text.size(); ++places.tokens) {
        young_->move(places.young, text[places.tokens]);
        if (old_) old_->move(places.old, text[places.tokens]);
    }
    const double before = best.score;
    young_->propose(places.young, limit, options, best);
    if (old_) old_->propose(places.old, limit, options, best);
    if (best.score > before) best.past = true;
}

Continuation PastAnswers::longest(const std::vector<int32_t>& end, int32_t shortest,
                                  int32_t limit) const {
    const auto in = [&](const CountedTexts& texts) {
        CountedTexts::Place place;
        for (const int32_t token : end) texts.move(place, token);
        return texts.longest(place, shortest, limit);
    };
    Continuation young = in(*young_);
    if (!old_) return young;
    Continuation old = in(*old_);
    return old.match > young.match ? old : young;
}

void SuffixTable::start(int64_t request, const std::vector<int32_t>& prompt,
                        const std::string& tenant) {
    const auto [found, made] = requests_.try_emplace(request, options_.depth);
    if (!made)
        throw std::invalid_argument("request " + std::to_string(request) + " was started already");
    found->second.tenant = tenant;
    found->second.prompt = prompt.size();
    append(found->second, prompt);
}

void SuffixTable::observe(int64_t request, const std::vector<int32_t>& tokens) {
    const auto found = requests_.find(request);
    if (found == requests_.end())
        throw std::invalid_argument("request " + std::to_string(request) + " was not started");
    append(found->second, tokens);
}

void SuffixTable::append(Request& request, const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
        request.text.append(token);
        request.tokens.push_back(token);
    }
}

Continuation SuffixTable::propose(int64_t request, int32_t length, int32_t limit) {
    const auto found = requests_.find(request);
    const std::size_t observed = found == requests_.end() ? 0 : found->second.tokens.size();
    if (observed != static_cast<std::size_t>(length))
        throw std::invalid_argument("request " + std::to_string(request) + ": observed " +
                                    std::to_string(observed) + " tokens, asked at " +
                                    std::to_string(length) +
                                    "; release it and observe its tokens anew");
    Continuation best;
    if (found == requests_.end()) return best;
    Request& one = found->second;
    one.text.propose(one.text.end(), limit, options_, best);
    const auto past = past_.find(one.tenant);
    if (past != past_.end()) past->second.propose(one.places, one.tokens, limit, options_, best);
    return best;
}

Continuation SuffixTable::look_up(const std::vector<int32_t>& end, const std::string& tenant,
                                  int32_t shortest, int32_t limit) const {
    if (shortest < 1 || limit < 0)
        throw std::invalid_argument("shortest must be at least 1, limit at least 0");
    const auto past = past_.find(tenant);
    return past == past_.end() ? Continuation{} : past->second.longest(end, shortest, limit);
}

void SuffixTable::release(int64_t request) {
    const auto found = requests_.find(request);
    if (found == requests_.end()) return;
    const Request& one = found->second;
    // A prompt that was refused half way is shorter than it says.
    const auto prompt = static_cast<std::ptrdiff_t>(std::min(one.prompt, one.tokens.size()));
    const std::vector<int32_t> answer(one.tokens.begin() + prompt, one.tokens.end());
    const std::string tenant = one.tenant;
    requests_.erase(found);
    learn(answer, tenant);
}

void SuffixTable::learn(const std::vector<int32_t>& answer, const std::string& tenant) {
    if (options_.max_requests == 0 || answer.empty()) return;
    const auto [found, made] = past_.try_emplace(tenant, options_.depth);
    PastAnswers& past = found->second;
    const std::size_t before = made ? 0 : past.bytes();
    past.add(answer, options_, ++stamp_);
    past_bytes_ += past.bytes() - before;
    keep_within_bounds();
}

// Drops what was added to longest ago, until what is left fits.
void SuffixTable::keep_within_bounds() {
    while (past_bytes_ > options_.max_bytes && !past_.empty()) {
        const auto oldest = std::min_element(past_.begin(), past_.end(), [](auto& a, auto& b) {
            return a.second.stamp() < b.second.stamp();
        });
        PastAnswers& past = oldest->second;
        const std::size_t before = past.bytes();
        if (past.has_older()) {
            past.drop_older();
            past_bytes_ -= before - past.bytes();
        } else {
            past_bytes_ -= before;
            past_.erase(oldest);
        }
    }
}

void SuffixTable::clear() {
    requests_.clear();
    past_.clear();
    past_bytes_ = 0;
}

std::size_t SuffixTable::bytes() const {
    std::size_t sum = 0;
    for (const auto& [number, request] : requests_)
        sum += request.text.bytes() + request.tokens.capacity() * sizeof(int32_t);
    return sum;
}

int64_t SuffixTable::past_tokens() const {
    int64_t sum = 0;
    for (const auto& [tenant, past] : past_) sum += past.tokens();
    return sum;
}

int64_t SuffixTable::past_answers() const {
    int64_t sum = 0;
    for (const auto& [tenant, past] : past_) sum += past.answers();
    return sum;
}

}  // namespace wager
