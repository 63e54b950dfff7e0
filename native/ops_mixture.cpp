#include <cmath>
#include <numeric>

#include "ops_product.h"

namespace wager {
namespace {

// The jobs of many parts as those of one phase.
template <class Part> struct Many {
    std::vector<Part> parts;
    std::vector<int64_t> ends;

    void add(const Part& part) {
        ends.push_back(jobs() + part.jobs());
        parts.push_back(part);
    }
    int64_t jobs() const { return ends.empty() ? 0 : ends.back(); }
    void run(int64_t job) const {
        const auto at = std::upper_bound(ends.begin(), ends.end(), job) - ends.begin();
        parts[size_t(at)].run(job - (at ? ends[size_t(at) - 1] : 0));
    }
};

// One of `count` matrices that stand one below the other; each ends with a whole panel.
Matrix part_of(const Matrix& whole, int64_t number, int64_t count) {
    const int64_t rows = whole.n / count;
    const int64_t bytes = rows / LANES * panel_bytes(whole.k, whole.kind);
    return {whole.data + number * bytes, rows, whole.k, whole.kind};
}

// Which rows go to which expert, and with what weight: places are numbered expert by expert, rows in
// order within each, so that every row is summed in the order of its experts' numbers.
struct Routes {
    std::vector<int32_t> rows;       // of each place
    std::vector<float> weights;      // of each place
    std::vector<int64_t> starts;     // of each expert, and the end
    std::vector<int64_t> places;     // [row][used]

    Routes(const Layer& layer, const float* scores, int64_t count)
        : rows(size_t(count * layer.experts_used)), weights(rows.size()),
          starts(size_t(layer.experts) + 1), places(rows.size()) {
        const int64_t used = layer.experts_used;
        std::vector<int32_t> chosen(rows.size());
        std::vector<float> share(rows.size());
        for (int64_t row = 0; row < count; ++row) {
            choose(layer, scores + row * layer.experts, chosen.data() + row * used,
                   share.data() + row * used);
            for (int64_t i = 0; i < used; ++i) ++starts[size_t(chosen[size_t(row * used + i)]) + 1];
        }
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        std::vector<int64_t> next(starts.begin(), starts.end() - 1);
        for (int64_t i = 0; i < int64_t(rows.size()); ++i) {
            const int64_t place = next[size_t(chosen[size_t(i)])]++;
            places[size_t(i)] = place;
            rows[size_t(place)] = int32_t(i / used);
            weights[size_t(place)] = share[size_t(i)];
        }
    }

    // The experts of one row, in the order of their numbers, and their weights.
    static void choose(const Layer& layer, const float* scores, int32_t* chosen, float* share) {
        std::vector<int32_t> order(size_t(layer.experts));
        std::iota(order.begin(), order.end(), 0);
        const auto end = order.begin() + layer.experts_used;
        std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
            return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
        });
        const double top = scores[order[0]];
        std::sort(order.begin(), end);
        const auto odds = [&](int32_t expert) { return std::exp(double(scores[expert]) - top); };
        double sum = 0.0;
        if (layer.normalised)
            for (auto at = order.begin(); at != end; ++at) sum += odds(*at);
        else
            for (int32_t expert = 0; expert < layer.experts; ++expert) sum += odds(expert);
        for (int64_t i = 0; i < layer.experts_used; ++i) {
            chosen[i] = order[size_t(i)];
            share[i] = float(odds(chosen[i]) / sum);
        }
    }
};

}  // namespace

struct Ops::Mixture {
    const Kernels& kernels;
    const Layer& layer;
    const Routes& routes;
    const float* y;      // [places][hidden]
    float* x;
    int64_t rows;
    Many<Normed> in;
    Many<Product> gate_up, down;

    int64_t jobs() const { return rows; }
    void add(int64_t row) const {
        for (int64_t i = 0; i < layer.experts_used; ++i) {
            const int64_t place = routes.places[size_t(row * layer.experts_used + i)];
            kernels.add_scaled(x + row * layer.hidden, y + place * layer.hidden,
                               routes.weights[size_t(place)] * layer.residual_scale, layer.hidden);
        }
    }
};

// Scores, then all experts side by side: their rows into tiles, gate and up, down, and the sums.
void Ops::mixture(const Layer& layer, float* x, int64_t rows) {
    struct Scores { Normed in; Product product; };
    const std::lock_guard lock(mutex_);
    const Tiles all = tiles(words_, layer.router, rows);
    float* scores = scores_.floats(rows * layer.experts);
    Scores first{{x, nullptr, optional(layer.mlp_norm), layer.eps,
                  {*kernels_, threads(), layer.router, all}},
                 Product(*kernels_, threads(), layer.router, all, {scores, layer.experts})};
    const Phase scoring[] = {phase_of<&Scores::in>(first), phase_of<&Scores::product>(first)};
    pool_.run(scoring, 2, &first);

    const Routes routes(layer, scores, rows);
    const int64_t places = int64_t(routes.rows.size());
    const Tiles x_tiles = tiles(words_, layer.gate_up, places);
    const Tiles middle = tiles(middle_, layer.down, places);
    float* y = wide_.floats(places * layer.hidden);
    // Tiles are described by their matrix, which has to stay where it is.
    std::vector<Matrix> matrices;
    matrices.reserve(size_t(layer.experts));
    Mixture context{*kernels_, layer, routes, y, x, rows, {}, {}, {}};
    for (int64_t expert = 0; expert < layer.experts; ++expert) {
        const int64_t start = routes.starts[size_t(expert)];
        const int64_t count = routes.starts[size_t(expert) + 1] - start;
        if (!count) continue;
        const int64_t tile = kernels_->of(layer.gate_up.kind).max_rows;
        const auto own = [&](const Tiles& whole) {
            return Tiles{whole.data + whole.words * start, count, whole.words,
                         (count + tile - 1) / tile};
        };
        const Tiles own_x = own(x_tiles), own_middle = own(middle);
        matrices.push_back(part_of(layer.gate_up, expert, layer.experts));
        context.in.add({x, routes.rows.data() + start, optional(layer.mlp_norm), layer.eps,
                        {*kernels_, threads(), matrices.back(), own_x}});
        context.gate_up.add(Product(*kernels_, threads(), matrices.back(), own_x, {}, &own_middle,
                                    layer.gelu));
        context.down.add(Product(*kernels_, threads(),
                                 part_of(layer.down, expert, layer.experts), own_middle,
                                 {y + start * layer.hidden, layer.hidden}));
    }
    const Phase phases[] = {
        phase_of<&Mixture::in>(context),
        phase_of<&Mixture::gate_up>(context),
        phase_of<&Mixture::down>(context),
        {context.jobs(), [](void* c, int64_t row) { static_cast<Mixture*>(c)->add(row); }},
    };
    pool_.run(phases, 4, &context);
}

}  // namespace wager
