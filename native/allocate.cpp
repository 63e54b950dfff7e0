#include "allocate.h"

#include <algorithm>
#include <cmath>

namespace wager {

double ByRows::at(double wanted) const {
    const int64_t above = std::lower_bound(rows, rows + count, wanted) - rows;
    if (above == count) return values[count - 1];
    if (above == 0) return values[0];
    const double share = (wanted - rows[above - 1]) / (rows[above] - rows[above - 1]);
    return values[above - 1] + share * (values[above] - values[above - 1]);
}

double StepCurve::at(double step_rows, double attended) const {
    const double beyond = std::max(step_rows + beside - ms.rows[ms.count - 1], 0.0);
    const double weights = ms.at(step_rows + beside) + slope * beyond;
    return (weights + base + attend * attended) * std::exp(correction.at(step_rows));
}

namespace {

struct Row {
    double survival;
    size_t offer;
};

std::vector<Row> best_rows(const std::vector<std::vector<double>>& survival, int64_t most) {
    std::vector<Row> rows;
    for (size_t offer = 0; offer < survival.size(); ++offer)
        for (const double chance : survival[offer]) rows.push_back({chance, offer});
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& b) { return a.survival > b.survival; });
    if (int64_t(rows.size()) > most) rows.resize(size_t(most));
    return rows;
}

struct Step {
    double gain, risk, pace, tokens, ms;
};

}  // namespace

AllocateAnswer allocate(const std::vector<std::vector<double>>& survival,
                        const std::vector<double>& contexts, const StepCurve& curve,
                        const AllocateQuestion& question) {
    const std::vector<Row> rows = best_rows(survival, question.most);
    const double requests = double(question.requests);
    std::vector<Step> steps;
    steps.reserve(rows.size());
    double tokens = 0.0, attended = 0.0, ms = 0.0;
    size_t best = 0, chosen = rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
        tokens += rows[i].survival;
        attended += contexts[rows[i].offer];
        // A step with more rows takes no less time.
        ms = std::max(ms, curve.at(requests + double(i + 1), attended));
        const double cost = (ms + question.spent_ms) / question.plain_ms, all = requests + tokens;
        steps.push_back({all / requests - cost, cost - 1.0, all / cost, all, ms});
        if (steps[i].pace > steps[best].pace) best = i;
        if (steps[i].risk <= question.room &&
            (chosen == rows.size() || steps[i].pace > steps[chosen].pace))
            chosen = i;
    }
    AllocateAnswer answer;
    if (rows.empty()) return answer;
    if (chosen != best && steps[best].gain > question.margin) answer.wanted = steps[best].gain;
    if (chosen == rows.size() || steps[chosen].gain <= question.margin) return answer;
    answer.lengths.assign(survival.size(), 0);
    for (size_t i = 0; i <= chosen; ++i) ++answer.lengths[rows[i].offer];
    answer.gain = steps[chosen].gain;
    answer.risk = steps[chosen].risk;
    answer.tokens = steps[chosen].tokens;
    answer.ms = steps[chosen].ms;
    return answer;
}

}  // namespace wager
