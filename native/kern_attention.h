// Attention of a few rows over one chunk of the context. Keys are transposed within a block, so that
// lanes run over positions; values are row by row, so that lanes run over the head's dimensions.
//
// A row's result depends on its own position alone: scores sum over the dimensions in order, values
// over the positions in order, and a row stops at its own position. What lies behind it (stale data,
// even NaN) meets only lanes that are replaced before they are used.
#pragma once

#include "isa.h"

namespace wager::WAGER_ISA {

constexpr float MINUS_INFINITY = -__builtin_inff();
// One line more than their size, so that rows do not share cache sets.
constexpr int64_t SCORE_STRIDE = CHUNK + LANES;
constexpr int64_t QUERY_STRIDE = MAX_HEAD_DIM + LANES;

// Few rows leave registers free: then that many columns are summed side by side, which hides the
// latency of the multiply-adds.
constexpr int columns_of(int rows) {
    return rows * 4 <= MAX_ROWS_F32 ? 4 : rows * 2 <= MAX_ROWS_F32 ? 2 : 1;
}

template <class T> struct Chunk {
    const AttendJob& job;
    int64_t first;      // position
    const T* key_block(int64_t i) const { return block(job.keys, i); }
    const T* value_block(int64_t i) const { return block(job.values, i); }
    const T* block(const uint8_t* base, int64_t i) const {
        return reinterpret_cast<const T*>(base + job.table[first / KV_BLOCK + i] * job.block_bytes);
    }
};

// scores[r][16 C] = q . keys of C blocks from `i` on. Meanwhile their values and the keys of
// the blocks from `next` on are fetched.
template <int R, int C, class T>
void score_blocks(const Chunk<T>& chunk, int64_t i, int64_t next, const float* q, float* scores) {
    V sum[R][C];
    const T* keys[C];
    WAGER_UNROLL
    for (int c = 0; c < C; ++c) keys[c] = chunk.key_block(i + c);
    WAGER_UNROLL
    for (int r = 0; r < R; ++r)
        WAGER_UNROLL
        for (int c = 0; c < C; ++c) sum[r][c] = set1(0.0f);
    const T* values[C];
    WAGER_UNROLL
    for (int c = 0; c < C; ++c) values[c] = chunk.value_block(i + c);
    const T* coming[C];
    WAGER_UNROLL
    for (int c = 0; c < C; ++c) coming[c] = chunk.key_block(next + c);
    for (int64_t d = 0; d < chunk.job.dim; ++d) {
        V column[C];
        WAGER_UNROLL
        for (int c = 0; c < C; ++c) {
            column[c] = load(keys[c] + d * KV_BLOCK);
            prefetch(values[c] + d * KV_BLOCK);
            prefetch(coming[c] + d * KV_BLOCK);
        }
        WAGER_UNROLL
        for (int r = 0; r < R; ++r) {
            const V query = set1(q[r * QUERY_STRIDE + d]);
            WAGER_UNROLL
            for (int c = 0; c < C; ++c) sum[r][c] = fma(query, column[c], sum[r][c]);
        }
    }
    WAGER_UNROLL
    for (int r = 0; r < R; ++r)
        WAGER_UNROLL
        for (int c = 0; c < C; ++c) store(scores + r * SCORE_STRIDE + (i + c) * LANES, sum[r][c]);
}

template <int R, class T>
void score(const Chunk<T>& chunk, const float* q, int64_t i, int64_t blocks, float* scores) {
    constexpr int C = columns_of(R);
    for (; i + C <= blocks; i += C)
        score_blocks<R, C>(chunk, i, i + 2 * C <= blocks ? i + C : i, q, scores);
    for (; i < blocks; ++i) score_blocks<R, 1>(chunk, i, i + 1 < blocks ? i + 1 : i, q, scores);
}

// out[r][d .. d + 16 C] += weights[r][p] * values[p][d ..] over positions [begin, end) of the chunk.
template <int R, int C, class T>
void weigh_columns(const Chunk<T>& chunk, const float* weights, int64_t begin, int64_t end,
                   int64_t d, float* out, int64_t stride) {
    V sum[R][C];
    WAGER_UNROLL
    for (int r = 0; r < R; ++r)
        WAGER_UNROLL
        for (int c = 0; c < C; ++c) sum[r][c] = load(out + r * stride + d + c * LANES);
    const int64_t dim = chunk.job.dim;
    while (begin < end) {
        const int64_t block = begin / KV_BLOCK, stop = (block + 1) * KV_BLOCK;
        const T* values = chunk.value_block(block) + (begin - block * KV_BLOCK) * dim + d;
        for (const int64_t last = stop < end ? stop : end; begin < last; ++begin, values += dim) {
            V row[C];
            WAGER_UNROLL
            for (int c = 0; c < C; ++c) row[c] = load(values + c * LANES);
            WAGER_UNROLL
            for (int r = 0; r < R; ++r) {
                const V weight = set1(weights[r * SCORE_STRIDE + begin]);
                WAGER_UNROLL
                for (int c = 0; c < C; ++c) sum[r][c] = fma(weight, row[c], sum[r][c]);
            }
        }
    }
    WAGER_UNROLL
    for (int r = 0; r < R; ++r)
        WAGER_UNROLL
        for (int c = 0; c < C; ++c) store(out + r * stride + d + c * LANES, sum[r][c]);
}

template <int R, class T>
void weigh(const Chunk<T>& chunk, const float* weights, int64_t begin, int64_t end, float* out,
           int64_t stride) {
    constexpr int C = columns_of(R);
    if (begin >= end) return;
    int64_t d = 0;
    for (; d + C * LANES <= chunk.job.dim; d += C * LANES)
        weigh_columns<R, C>(chunk, weights, begin, end, d, out, stride);
    for (; d < chunk.job.dim; d += LANES)
        weigh_columns<R, 1>(chunk, weights, begin, end, d, out, stride);
}

// Scores of the vector at `i`, capped; those outside of [begin, end) are minus infinity.
inline V visible(const float* scores, int64_t i, int64_t begin, int64_t end, float cap) {
    const float lane_number[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    V value = load(scores + i);
    if (cap != 0.0f) value = capped(value, cap);
    const V lanes = load(lane_number), nothing = set1(MINUS_INFINITY);
    if (i + LANES > end) value = select(less(lanes, set1(float(end - i))), value, nothing);
    if (i < begin) value = select(less(lanes, set1(float(begin - i))), nothing, value);
    return value;
}

// Scores to weights exp(score - maximum) for the positions [begin, end); the maximum and the sum.
inline void soften(float* scores, int64_t begin, int64_t end, float cap, float* maximum,
                   float* sum) {
    const int64_t first = begin / LANES * LANES;
    V top = set1(MINUS_INFINITY);
    for (int64_t i = first; i < end; i += LANES) {
        const V value = visible(scores, i, begin, end, cap);
        store(scores + i, value);
        top = max(value, top);
    }
    *maximum = max_lanes(top);
    const V shift = set1(*maximum);
    V total = set1(0.0f);
    for (int64_t i = first; i < end; i += LANES) {
        const V value = exp(sub(load(scores + i), shift));
        store(scores + i, value);
        total = add(total, value);
    }
    *sum = sum_lanes(total);
}

struct Pairs {
    int64_t first, count;    // (row, head) pairs of the job, rows outermost
    int64_t begin[MAX_ROWS_F32], end[MAX_ROWS_F32];    // what each sees of the chunk
};

inline void gather_queries(const AttendJob& job, const Pairs& pairs, float* q) {
    const V scale = set1(job.scale);
    for (int64_t i = 0; i < pairs.count; ++i, q += QUERY_STRIDE) {
        const int64_t pair = pairs.first + i, row = job.row_begin + pair / job.group;
        const float* from = job.q + row * job.q_stride + pair % job.group * job.dim;
        for (int64_t d = 0; d < job.dim; d += LANES)
            store(q + d, mul(load_part(from + d, job.dim - d), scale));
    }
}

template <int R, class T> void attend_pairs(const Chunk<T>& chunk, const Pairs& pairs) {
    const AttendJob& job = chunk.job;
    alignas(64) float q[R * QUERY_STRIDE];
    alignas(64) float scores[R * SCORE_STRIDE];
    const int64_t slot = partial_size(job.dim);
    float* partial = job.partial + pairs.first * slot;
    int64_t least = CHUNK, most = 0, common = 0, common_end = CHUNK;
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) {
        const int64_t begin = pairs.begin[r], end = pairs.end[r];
        least = begin < least ? begin : least;
        most = end > most ? end : most;
        common = begin > common ? begin : common;
        common_end = end < common_end ? end : common_end;
    }
    // Rows that share no position go over their own alone.
    if (common >= common_end) common = common_end = CHUNK;
    gather_queries(job, pairs, q);
    score<R>(chunk, q, least / KV_BLOCK, (most + KV_BLOCK - 1) / KV_BLOCK, scores);
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) {
        float* tail = partial + r * slot + padded(job.dim);
        soften(scores + r * SCORE_STRIDE, pairs.begin[r], pairs.end[r], job.cap, tail, tail + 1);
        for (int64_t d = 0; d < job.dim; d += LANES) store(partial + r * slot + d, set1(0.0f));
    }
    // In the order of positions: those before the common ones, the common ones, those after.
    const auto own = [&](int r, int64_t begin, int64_t end) {
        weigh<1>(chunk, scores + r * SCORE_STRIDE, begin, end < pairs.end[r] ? end : pairs.end[r],
                 partial + r * slot, slot);
    };
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) own(r, pairs.begin[r], common);
    weigh<R>(chunk, scores, common, common_end, partial, slot);
    WAGER_UNROLL
    for (int r = 0; r < R; ++r) own(r, common_end, CHUNK);
}

template <class T> struct AttendTable {
    using Function = void (*)(const Chunk<T>&, const Pairs&);
    Function at[MAX_ROWS_F32 + 1] = {};
    template <int R> constexpr void fill() {
        at[R] = &attend_pairs<R, T>;
        if constexpr (R > 1) fill<R - 1>();
    }
    constexpr AttendTable() { fill<MAX_ROWS_F32>(); }
};

template <class T> void attend(const AttendJob& job) {
    static constexpr AttendTable<T> table;
    const Chunk<T> chunk{job, job.chunk * CHUNK};
    const int64_t total = (job.row_end - job.row_begin) * job.group;
    const int64_t parts = (total + MAX_ROWS_F32 - 1) / MAX_ROWS_F32;
    for (int64_t part = 0; part < parts; ++part) {
        Pairs pairs;
        pairs.first = part * total / parts;
        pairs.count = (part + 1) * total / parts - pairs.first;
        for (int64_t i = 0; i < pairs.count; ++i) {
            const int64_t row = job.row_begin + (pairs.first + i) / job.group;
            const int64_t seen = job.positions[row] + 1 - chunk.first;
            const int64_t end = seen < 0 ? 0 : seen < CHUNK ? seen : CHUNK;
            const int64_t begin = job.window && seen > job.window ? seen - job.window : 0;
            // What lies outside of its window, or behind it, is an empty range at the start.
            pairs.begin[i] = begin < end ? begin : 0;
            pairs.end[i] = begin < end ? end : 0;
        }
        table.at[pairs.count](chunk, pairs);
    }
}

inline void merge(float* state, const float* partial, int64_t dim) {
    const int64_t end = padded(dim);
    // A chunk behind the row's position, or before its window, holds nothing for it.
    if (partial[end] == MINUS_INFINITY) return;
    if (state[end] == MINUS_INFINITY) {
        std::memcpy(state, partial, size_t(end + LANES) * 4);
        return;
    }
    const bool higher = partial[end] > state[end];
    const float top = higher ? partial[end] : state[end];
    // The one that holds the maximum keeps its weight.
    const V less_weight = exp(set1((higher ? state[end] : partial[end]) - top));
    const V old = higher ? less_weight : set1(1.0f), fresh = higher ? set1(1.0f) : less_weight;
    for (int64_t d = 0; d < end + LANES; d += LANES)
        store(state + d, fma(load(partial + d), fresh, mul(load(state + d), old)));
    state[end] = top;
}

inline void finish(const float* state, float* out, int64_t dim) {
    const V sum = set1(state[padded(dim) + 1]);
    for (int64_t d = 0; d < dim; d += LANES)
        store_part(out + d, div(load(state + d), sum), dim - d);
}

}  // namespace wager::WAGER_ISA
