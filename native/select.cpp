#include "select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "ops.h"

namespace wager {
namespace {

constexpr float LOWEST = -std::numeric_limits<float>::infinity();
constexpr int64_t BLOCK = 64;

struct Weighted {
    float logit, weight;
};

// One row while its filters are being worked out. All three filters come to a lower bound on the
// logits, so that ties at a border stay together.
struct Row {
    const Kernels& kernels;
    const float* logits;
    int64_t n;
    std::vector<float>& maxima;
    std::vector<float>& kept;
    float top;
    float inverse;       // 1 / temperature

    // The k-th largest logit.
    float top_k_bound(int64_t k) {
        float bound = LOWEST;
        const int64_t blocks = (n + BLOCK - 1) / BLOCK;
        if (k <= blocks) {
            // k blocks have a maximum of at least this, so the k-th largest logit is no smaller.
            kept.assign(maxima.begin(), maxima.begin() + blocks);
            std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<>());
            bound = kept[size_t(k - 1)];
        }
        const int64_t count = gather(bound);
        std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.begin() + count,
                         std::greater<>());
        return kept[size_t(k - 1)];
    }

    // The smallest logit of the smallest set of most likely tokens that holds `share` of the mass.
    float top_p_bound(double share, float bound) {
        const double wanted = share * kernels.exp_sum(logits, n, top, inverse, bound);
        // The set is nearly always among the few most likely tokens: look there first.
        for (const float depth : {4.0f, 8.0f, 16.0f, 1e30f}) {
            const float cut = std::max(bound, top - depth / inverse);
            const int64_t count = gather(cut);
            std::vector<float> weight(size_t(count + LANES));
            kernels.exp_values(kept.data(), count, top, inverse, weight.data());
            double mass = 0.0;
            for (int64_t i = 0; i < count; ++i) mass += double(weight[size_t(i)]);
            if (mass < wanted && cut > bound) continue;
            std::vector<Weighted> entries(static_cast<size_t>(count));
            for (size_t i = 0; i < entries.size(); ++i) entries[i] = {kept[i], weight[i]};
            return border(entries, wanted);
        }
        return bound;
    }

private:
    int64_t gather(float bound) {
        kept.resize(size_t(n + LANES));
        return kernels.at_least(logits, n, bound, kept.data());
    }

    // Quickselect by mass: the largest logit such that it and all above weigh at least `wanted`.
    static float border(std::vector<Weighted>& entries, double wanted) {
        auto begin = entries.begin(), end = entries.end();
        float last = LOWEST;
        while (begin != end) {
            const auto middle = begin + (end - begin) / 2;
            const float a = begin->logit, b = middle->logit, c = (end - 1)->logit;
            const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
            const auto equal = std::partition(begin, end,
                                              [&](const Weighted& e) { return e.logit > pivot; });
            const auto below = std::partition(equal, end,
                                              [&](const Weighted& e) { return e.logit == pivot; });
            double above_mass = 0.0, equal_mass = 0.0;
            for (auto i = begin; i != equal; ++i) above_mass += double(i->weight);
            for (auto i = equal; i != below; ++i) equal_mass += double(i->weight);
            if (above_mass >= wanted) {
                end = equal;
                continue;
            }
            last = pivot;
            if (above_mass + equal_mass >= wanted) break;
            wanted -= above_mass + equal_mass;
            begin = below;
        }
        return last;
    }
};

Top checked_top(const Kernels& kernels, const float* logits, int64_t n, std::vector<float>& maxima) {
    maxima.resize(size_t((n + BLOCK - 1) / BLOCK));
    const Top top = kernels.block_max(logits, n, maxima.data());
    require(!top.bad, "logits: NaN or +inf");
    require(top.id >= 0, "logits: every token is excluded (-inf)");
    return top;
}

}  // namespace

int32_t select_token(const Kernels& kernels, const float* logits, int64_t n,
                     const SelectParams& params, bool prune) {
    thread_local std::vector<float> maxima, kept;
    const Top top = checked_top(kernels, logits, n, maxima);
    if (params.temperature == 0.0) return top.id;
    // Never 0: times an excluded logit (-inf) that is NaN, which no comparison keeps out.
    const float inverse = float(std::clamp(1.0 / params.temperature, 1e-37, 3e38));
    Row row{kernels, logits, n, maxima, kept, top.value, inverse};
    float bound = LOWEST;
    if (params.top_k > 0 && params.top_k < n) bound = row.top_k_bound(params.top_k);
    if (params.top_p < 1.0) bound = std::max(bound, row.top_p_bound(params.top_p, bound));
    if (params.min_p > 0.0)
        bound = std::max(bound, float(double(top.value) + std::log(params.min_p) * params.temperature));
    bound = std::min(bound, top.value);
    const Philox noise{{uint32_t(params.seed), uint32_t(params.seed >> 32)}, params.position,
                       params.choice, PURPOSE_TARGET};
    return kernels.gumbel_max(logits, n, top.value, top.id, inverse, bound,
                              prune ? maxima.data() : nullptr, noise);
}

double log_sum_exp(const Kernels& kernels, const float* logits, int64_t n) {
    thread_local std::vector<float> maxima;
    const Top top = checked_top(kernels, logits, n, maxima);
    return double(top.value) + std::log(kernels.exp_sum(logits, n, top.value, 1.0f, LOWEST));
}

}  // namespace wager
