// A product split into jobs, and activations into tiles; both are phases of a block.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops.h"

namespace wager {

// The phase that does the jobs of one part of a block's context.
template <auto Part, class Context> Phase phase_of(const Context& context) {
    return {(context.*Part).jobs(),
            [](void* c, int64_t job) { (static_cast<Context*>(c)->*Part).run(job); }};
}

// Fills tiles in jobs of (tile, part of the columns), so that no two jobs share a cache line of a
// tile. `fill(row, first, n, out)` writes the columns [first, first + n) of a row.
struct TileJobs {
    const Kernels& kernels;
    const Matrix& matrix;
    Tiles tiles;

    int64_t part;      // columns of a job; whole groups

    static constexpr int64_t MAX_PART = 256;

    TileJobs(const Kernels& kernels_, int threads, const Matrix& matrix_, const Tiles& tiles_)
        : kernels(kernels_), matrix(matrix_), tiles(tiles_) {
        // Two jobs per thread at least, so that threads end together.
        const int64_t share = matrix.k * tiles.count / (threads * 2) + 1;
        part = std::clamp<int64_t>((share + GROUP - 1) / GROUP * GROUP, 2 * GROUP, MAX_PART);
    }

    int64_t parts() const { return (matrix.k + part - 1) / part; }
    int64_t jobs() const { return tiles.count * parts(); }

    template <class Fill> void run(int64_t job, Fill fill) const {
        alignas(64) float scratch[MAX_TILE_ROWS * MAX_PART];
        const int64_t tile = job / parts(), first = job % parts() * part;
        const int64_t n = std::min(part, matrix.k - first);
        const int64_t start = tiles.begin(tile), rows = tiles.begin(tile + 1) - start;
        const ProductKernels& of = kernels.of(matrix.kind);
        for (int64_t row = 0; row < rows; ++row) fill(start + row, first, n, scratch + row * part);
        uint32_t* out = const_cast<uint32_t*>(tiles.data) + start * tiles.words;
        of.pack(scratch, part, rows, n, out + of.words(first) * rows);
    }
};

// What a layer may lack.
inline const float* optional(const std::vector<float>& values) {
    return values.empty() ? nullptr : values.data();
}

// Rows into tiles: their RMS norm, or, without a weight, as they are.
struct Ops::Normed {
    const float* x;
    const int32_t* rows;      // which rows; null: all
    const float* weight;
    float eps;
    TileJobs out;

    int64_t jobs() const { return out.jobs(); }
    void run(int64_t job) const {
        const int64_t k = out.matrix.k;
        out.run(job, [&](int64_t i, int64_t first, int64_t n, float* to) {
            const float* from = x + (rows ? rows[i] : i) * k;
            if (!weight) {
                std::memcpy(to, from + first, size_t(n) * 4);
                return;
            }
            // The scale is worked out again for each part: cheaper than to wait for it.
            const float scale = out.kernels.rms_scale(from, eps, k);
            out.kernels.apply_norm(from + first, scale, weight + first, to, n);
        });
    }
};

struct Ops::Product {
    ProductJob whole;
    void (*kernel)(const ProductJob&);
    int64_t panels, panels_per_job, tile_jobs, panel_jobs;

    // Activations that one job goes over again for each of its panels: what the second cache holds.
    static constexpr int64_t ACTIVATION_BYTES = 400 << 10;
    static constexpr int64_t MAX_JOB_ROWS = 240;

    // `gated`: the matrix is gate and up, and act(gate) * up goes into these tiles, not to `to`.
    Product(const Kernels& kernels, int threads, const Matrix& m, const Tiles& x, const Output& to,
            const Tiles* gated = nullptr, bool gelu = false)
        : whole{m.data, m.n, m.k, x, to, 0, 0, 0, 0} {
        const ProductKernels& of = kernels.of(m.kind);
        kernel = of.product;
        panels = m.panels();
        if (gated) {
            kernel = of.gated_product;
            panels = m.n / 2 / LANES;
            whole.gated = const_cast<uint32_t*>(gated->data);
            whole.gated_words = gated->words;
            whole.gelu = gelu;
        }
        const int64_t rows = std::min(MAX_JOB_ROWS, ACTIVATION_BYTES / (x.words * 4));
        const int64_t tiles_per_job = std::max<int64_t>(1, rows / of.max_rows);
        tile_jobs = (x.count + tiles_per_job - 1) / tiles_per_job;
        // Enough jobs that threads end together, few enough that handing them out costs nothing.
        panels_per_job = std::clamp<int64_t>(panels * tile_jobs / (threads * 8), 1, 8);
        if (gated) panels_per_job = (panels_per_job + 1) / 2 * 2;
        panel_jobs = (panels + panels_per_job - 1) / panels_per_job;
    }

    int64_t jobs() const { return panel_jobs * tile_jobs; }

    void run(int64_t index) const {
        ProductJob job = whole;
        const int64_t tile_job = index / panel_jobs, panel_job = index % panel_jobs;
        job.tile_begin = tile_job * job.x.count / tile_jobs;
        job.tile_end = (tile_job + 1) * job.x.count / tile_jobs;
        job.panel_begin = panel_job * panels_per_job;
        job.panel_end = std::min(panels, job.panel_begin + panels_per_job);
        kernel(job);
    }
};

}  // namespace wager
