// Packed weights times tiles of rows. Lanes run over output columns, rows are broadcast, and each
// sum runs over K in one order, whatever the number of rows: a tile only decides how many rows share
// a load of the weights.
#pragma once

#include "isa.h"
#include "kern_math.h"

namespace wager::WAGER_ISA {

// Lines of the coming weights that one tile fetches ahead, per unit of K.
struct Ahead {
    const char* next;
    int64_t lines;
    void fetch() {
        for (int64_t i = 0; i < lines; ++i, next += 64) prefetch(next);
    }
};

template <int R> inline void load_sums(V (&sum)[R], const float* sums, bool first) {
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = first ? set1(0.0f) : load(sums + r * LANES);
}
template <int R> inline void store_sums(const V (&sum)[R], float* sums) {
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) store(sums + r * LANES, sum[r]);
}

// Weights that are floats, whole or their upper halves; the sums are those of f32.
template <class T, WeightKind Kind> struct FloatWeights {
    static constexpr int64_t UNIT = 8;             // k per unit
    static constexpr int64_t UNIT_BYTES = UNIT * LANES * int64_t(sizeof(T));
    static constexpr int64_t SLICE = 256;          // k that stay in the first cache
    static constexpr int MAX_ROWS = MAX_ROWS_F32;
    static constexpr WeightKind KIND = Kind;
    static constexpr auto pack = pack_f32;
    static int64_t words(int64_t k) { return k; }

    template <int R>
    static void tile(const uint8_t* weights, const uint32_t* words, float* sums, int64_t k,
                     bool first, Ahead ahead) {
        const T* w = reinterpret_cast<const T*>(weights);
        const float* x = reinterpret_cast<const float*>(words);
        V sum[R];
        load_sums(sum, sums, first);
        int64_t i = 0;
        for (; i + UNIT <= k; i += UNIT) {
            ahead.fetch();
            for (int j = 0; j < UNIT; ++j, w += LANES, x += R) {
                const V column = load(w);
                WAGER_UNROLL
                for (int r = 0; r < R; ++r) sum[r] = fma(set1(x[r]), column, sum[r]);
            }
        }
        for (; i < k; ++i, w += LANES, x += R) {
            const V column = load(w);
            WAGER_UNROLL
            for (int r = 0; r < R; ++r) sum[r] = fma(set1(x[r]), column, sum[r]);
        }
        store_sums(sum, sums);
    }
};

// Quantised weights go group by group; `W` says how.
template <class W> struct GroupedWeights {
    static constexpr int64_t UNIT = 2 * GROUP;
    static constexpr int64_t SLICE = 1024;
    static int64_t words(int64_t k) { return k / GROUP * W::GROUP_WORDS; }

    template <int R>
    static void tile(const uint8_t* w, const uint32_t* x, float* sums, int64_t k, bool first,
                     Ahead ahead) {
        constexpr PairLayout PAIR = W::PAIR;
        V sum[R];
        load_sums(sum, sums, first);
        int64_t i = 0;
        for (; i + UNIT <= k; i += UNIT, w += PAIR.bytes(), x += 2 * W::GROUP_WORDS * R) {
            ahead.fetch();
            const uint16_t* scales = reinterpret_cast<const uint16_t*>(w);
            W::template group<R>(w + PAIR.head, scales, x, sum);
            W::template group<R>(w + PAIR.head + PAIR.group, scales + LANES,
                                 x + W::GROUP_WORDS * R, sum);
        }
        if (i < k)
            W::template group<R>(w + PAIR.head, reinterpret_cast<const uint16_t*>(w), x, sum);
        store_sums(sum, sums);
    }
};

struct Int8Weights : GroupedWeights<Int8Weights> {
    static constexpr PairLayout PAIR = INT8_PAIR;
    static constexpr int64_t UNIT_BYTES = PAIR.bytes();
    static constexpr int MAX_ROWS = MAX_ROWS_INT8;
    static constexpr WeightKind KIND = WeightKind::int8;
    static constexpr auto pack = pack_int8;
    static constexpr int64_t GROUP_WORDS = 2 + 8 * QUAD_WORDS;

    template <int R>
    static inline void group(const uint8_t* w, const uint16_t* scales, const uint32_t* x,
                             V (&sum)[R]) {
        const V weight_scale = load(scales);
        const float* row_scale = reinterpret_cast<const float*>(x);
        const int32_t* start = reinterpret_cast<const int32_t*>(x + R);
        group_dots<R>(w, x + 2 * R, start, [&](int r, I dot) {
            sum[r] = fma(to_float(dot), mul(weight_scale, set1(row_scale[r])), sum[r]);
        });
    }
};

struct Int4Weights : GroupedWeights<Int4Weights> {
    static constexpr PairLayout PAIR = INT4_PAIR;
    static constexpr int64_t UNIT_BYTES = PAIR.bytes();
    static constexpr int MAX_ROWS = MAX_ROWS_INT8;
    static constexpr WeightKind KIND = WeightKind::int4;
    static constexpr auto pack = pack_int4;
    static constexpr int64_t GROUP_WORDS = 2 + 8;

    // sum of (minimum + scale * q) * x = scale * (sum of q * x) + minimum * (sum of x)
    template <int R>
    static inline void group(const uint8_t* w, const uint16_t* scales, const uint32_t* x,
                             V (&sum)[R]) {
        const V weight_scale = load(scales), minimum = load(scales + 2 * LANES);
        const float* row_scale = reinterpret_cast<const float*>(x);
        const float* total = row_scale + R;
        nibble_dots<R>(w, x + 2 * R, [&](int r, I dot) {
            const V scale = mul(weight_scale, set1(row_scale[r]));
            sum[r] = fma(minimum, set1(total[r]), fma(to_float(dot), scale, sum[r]));
        });
    }
};

using TileFunction = void (*)(const uint8_t*, const uint32_t*, float*, int64_t, bool, Ahead);

template <class W> struct TileTable {
    TileFunction at[W::MAX_ROWS + 1] = {};
    template <int R> constexpr void fill() {
        at[R] = &W::template tile<R>;
        if constexpr (R > 1) fill<R - 1>();
    }
    constexpr TileTable() { fill<W::MAX_ROWS>(); }
};

// How far a single pass over the weights fetches ahead.
constexpr int64_t AHEAD_BYTES = 8192;
// Rows whose sums one job keeps on its stack.
constexpr int64_t JOB_ROWS = 256;

// The sums of all rows of the job for one panel. Each pass over a slice of the panel fetches its share
// of what is read next, so that loading and arithmetic overlap; `after` is read after the panel.
template <class W>
void panel_sums(const ProductJob& job, const uint8_t* w, const uint8_t* after, float* sums) {
    static constexpr TileTable<W> table;
    const int64_t tiles = job.tile_end - job.tile_begin, row0 = job.x.begin(job.tile_begin);
    // One or two rows only read, and the hardware's own prefetching is best at that.
    const int64_t lines = job.x.rows <= 2 ? 0 : (W::UNIT_BYTES / 64 + tiles - 1) / tiles;
    const int64_t total = (job.k + W::UNIT - 1) / W::UNIT, ahead = AHEAD_BYTES / W::UNIT_BYTES;
    // One tile: as far as there is something of the panel to fetch ahead, then the rest.
    const int64_t slices = (job.k + W::SLICE - 1) / W::SLICE;
    const int64_t units = tiles > 1 ? (total + slices - 1) / slices
                        : total > ahead && lines ? total - ahead : total;
    for (int64_t unit = 0; unit < total;) {
        const int64_t count = tiles == 1 && unit ? total - unit
                            : unit + units < total ? units : total - unit;
        const int64_t k0 = unit * W::UNIT;
        const int64_t k = job.k - k0 < count * W::UNIT ? job.k - k0 : count * W::UNIT;
        const bool last = unit + count == total;
        const int64_t lead = tiles == 1 ? ahead : count;
        const uint8_t* here = w + unit * W::UNIT_BYTES;
        const char* next = reinterpret_cast<const char*>(last ? after : here + lead * W::UNIT_BYTES);
        for (int64_t tile = job.tile_begin; tile < job.tile_end; ++tile) {
            const int64_t row = job.x.begin(tile), rows = job.x.begin(tile + 1) - row;
            const int64_t done = (tile - job.tile_begin) * lines * 64 * count;
            table.at[rows](here, job.x.data + row * job.x.words + W::words(k0) * rows,
                           sums + (row - row0) * LANES, k, unit == 0, Ahead{next + done, lines});
        }
        unit += count;
    }
}

inline void write_panel(const ProductJob& job, int64_t panel, const float* sums) {
    const int64_t row = job.x.begin(job.tile_begin), rows = job.x.begin(job.tile_end) - row;
    const int64_t column = panel * LANES, width = job.n - column;
    const Output& to = job.to;
    const V bias = to.bias ? load_part(to.bias + column, width) : set1(0.0f);
    const V scale = set1(to.scale);
    float* out = to.out + row * to.stride + column;
    for (int64_t r = 0; r < rows; ++r, out += to.stride, sums += LANES) {
        V value = load(sums);
        if (to.bias) value = add(value, bias);
        value = to.add ? fma(value, scale, load_part(out, width)) : mul(value, scale);
        if (to.cap != 0.0f) value = capped(value, to.cap);
        store_part(out, value, width);
    }
}

template <class W> void product(const ProductJob& job) {
    alignas(64) float sums[JOB_ROWS * LANES];
    const int64_t bytes = panel_bytes(job.k, W::KIND);
    for (int64_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
        const uint8_t* w = job.weights + panel * bytes;
        panel_sums<W>(job, w, w + bytes, sums);
        write_panel(job, panel, sums);
    }
}

// act(gate) * up of two panels at a time: a group of columns, which goes into the tiles of the next
// product at once. The matrix holds the panels of the gate, then as many of the other factor.
template <class W> void gated_product(const ProductJob& job) {
    alignas(64) float gate[2][JOB_ROWS * LANES], up[2][JOB_ROWS * LANES];
    const int64_t bytes = panel_bytes(job.k, W::KIND), row0 = job.x.begin(job.tile_begin);
    const uint8_t* second = job.weights + job.n / 2 / LANES * bytes;
    for (int64_t panel = job.panel_begin; panel < job.panel_end; panel += 2) {
        const int64_t count = job.panel_end - panel < 2 ? 1 : 2;
        const uint8_t* w = job.weights + panel * bytes;
        const uint8_t* v = second + panel * bytes;
        for (int64_t i = 0; i < count; ++i, w += bytes)
            panel_sums<W>(job, w, i + 1 < count ? w + bytes : v, gate[i]);
        for (int64_t i = 0; i < count; ++i, v += bytes)
            panel_sums<W>(job, v, i + 1 < count ? v + bytes : w, up[i]);
        for (int64_t tile = job.tile_begin; tile < job.tile_end; ++tile) {
            const int64_t row = job.x.begin(tile), rows = job.x.begin(tile + 1) - row;
            alignas(64) float active[MAX_TILE_ROWS * GROUP];
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t i = 0; i < count; ++i) {
                    const int64_t at = (row - row0 + r) * LANES;
                    store(active + r * GROUP + i * LANES,
                          mul(activate(load(gate[i] + at), job.gelu), load(up[i] + at)));
                }
            uint32_t* out = job.gated + row * job.gated_words + W::words(panel * LANES) * rows;
            W::pack(active, GROUP, rows, count * LANES, out);
        }
    }
}

}  // namespace wager::WAGER_ISA
