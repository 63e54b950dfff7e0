// Which rows of a step go to which draft; see engine/control/allocate.py, whose Python form this is.
#pragma once

#include <cstdint>
#include <vector>

namespace wager {

// What a step takes, in milliseconds, by its rows and the context that they look at.
struct StepCurve {
    const double* rows;  // rising
    const double* ms;
    int64_t count;
    double slope;   // per row beyond the last
    double beside;  // rows of prompts
    double base;    // on top of the table, for the step without drafts
    double attend;  // per row and token of its context
    double first, last;          // rows between which the correction goes evenly
    double log_first, log_last;  // the logarithm of the correction at them

    double at(double step_rows, double attended) const;
};

struct AllocateQuestion {
    int64_t requests;
    int64_t most;  // draft rows
    double plain_ms, spent_ms, room, margin;
};

// `lengths` by offer; empty where nothing is bet.
struct AllocateAnswer {
    std::vector<int64_t> lengths;
    double gain = 0.0, risk = 0.0, tokens = 0.0, ms = 0.0, wanted = 0.0;
};

// `survival` falls along each offer; `contexts` has one entry per offer.
AllocateAnswer allocate(const std::vector<std::vector<double>>& survival,
                        const std::vector<double>& contexts, const StepCurve& curve,
                        const AllocateQuestion& question);

}  // namespace wager
