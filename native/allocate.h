// Which rows of a step go to which draft; see engine/control/allocate.py, whose Python form this is.
#pragma once

#include <cstdint>
#include <vector>

namespace wager {

// Values at rising numbers of rows; between two of them they go evenly.
struct ByRows {
    const double* rows;
    const double* values;
    int64_t count;

    // Beyond the ends the nearest value.
    double at(double wanted) const;
};

// What a step takes, in milliseconds, by its rows and the context that they look at.
struct StepCurve {
    ByRows ms;
    double slope;   // per row beyond the last
    double beside;  // rows of prompts
    double base;    // on top of the table, for the step without drafts
    double attend;  // per row and token of its context
    ByRows correction;  // its logarithm

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
