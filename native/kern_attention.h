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
// One line more than a chunk, so that rows do not share cache sets.
constexpr int64_t SCORE_STRIDE = CHUNK + LANES;

template <class T> struct Chunk {
    const AttendJob& job;
    int64_t first;      // position
    const T* key_block(int64_t i) const { return block(job.keys, i); }
    const T* value_block(int64_t i) const { return block(job.values, i); }
    const T* block(const uint8_t* base, int64_t i) const {
        return reinterpret_cast<const T*>(base + job.table[first / KV_BLOCK + i] * job.block_bytes);
    }
};

// scores[r][16] = q . keys of one block; q is [dim][R].
template <int R, class T>
void score_block(const T* keys, const float* q, int64_t dim, float* scores) {
    V sum[R];
    for (int r = 0; r < R; ++r) sum[r] = set1(0.0f);
    for (int64_t d = 0; d < dim; ++d, keys += KV_BLOCK, q += R) {
        const V column = load(keys);
        for (int r = 0; r < R; ++r) sum[r] = fma(set1(q[r]), column, sum[r]);
    }
    for (int r = 0; r < R; ++r) store(scores + r * SCORE_STRIDE, sum[r]);
}

// out[r][d .. d + 15] += weights[r][p] * values[p][d ..] over the positions [begin, end) of the chunk.
template <int R, class T>
void weigh(const Chunk<T>& chunk, const float* weights, int64_t begin, int64_t end, int64_t d,
           float* out, int64_t out_stride) {
    V sum[R];
    for (int r = 0; r < R; ++r) sum[r] = load(out + r * out_stride + d);
    const int64_t dim = chunk.job.dim;
    while (begin < end) {
        const int64_t block = begin / KV_BLOCK, stop = (block + 1) * KV_BLOCK;
        const T* values = chunk.value_block(block) + (begin - block * KV_BLOCK) * dim + d;
        for (const int64_t last = stop < end ? stop : end; begin < last; ++begin, values += dim) {
            const V row = load(values);
            for (int r = 0; r < R; ++r)
                sum[r] = fma(set1(weights[r * SCORE_STRIDE + begin]), row, sum[r]);
        }
    }
    for (int r = 0; r < R; ++r) store(out + r * out_stride + d, sum[r]);
}

// Scores to weights exp(score - maximum) for the first `count` positions; the maximum and the sum.
inline void soften(float* scores, int64_t count, float* maximum, float* sum) {
    const float lane_number[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const V lanes = load(lane_number);
    V top = set1(MINUS_INFINITY);
    for (int64_t i = 0; i < count; i += LANES) {
        const M valid = less(lanes, set1(float(count - i)));
        const V value = select(valid, load(scores + i), set1(MINUS_INFINITY));
        store(scores + i, value);
        top = max(top, value);
    }
    *maximum = max_lanes(top);
    const V shift = set1(*maximum);
    V total = set1(0.0f);
    for (int64_t i = 0; i < count; i += LANES) {
        const V value = exp(sub(load(scores + i), shift));
        store(scores + i, value);
        total = add(total, value);
    }
    *sum = sum_lanes(total);
}

struct Pairs {
    int64_t first, count;    // (row, head) pairs of the job, rows outermost
    int64_t valid[MAX_ROWS_F32];
    float maximum[MAX_ROWS_F32], sum[MAX_ROWS_F32];
};

inline void gather_queries(const AttendJob& job, const Pairs& pairs, float* q) {
    const V scale = set1(job.scale);
    for (int64_t i = 0; i < pairs.count; ++i) {
        const int64_t pair = pairs.first + i, row = job.row_begin + pair / job.group;
        const float* from = job.q + row * job.q_stride + pair % job.group * job.dim;
        for (int64_t d = 0; d < job.dim; d += LANES) {
            const int64_t n = job.dim - d < LANES ? job.dim - d : LANES;
            float part[LANES];
            store(part, mul(load_part(from + d, n), scale));
            for (int64_t j = 0; j < n; ++j) q[(d + j) * pairs.count + i] = part[j];
        }
    }
}

template <int R, class T> void attend_pairs(const Chunk<T>& chunk, Pairs& pairs) {
    const AttendJob& job = chunk.job;
    alignas(64) float q[R * MAX_HEAD_DIM];
    alignas(64) float scores[R * SCORE_STRIDE];
    alignas(64) float out[R * (MAX_HEAD_DIM + LANES)];
    const int64_t out_stride = (job.dim + LANES - 1) / LANES * LANES;
    int64_t most = 0, common = CHUNK;
    for (int r = 0; r < R; ++r) {
        most = pairs.valid[r] > most ? pairs.valid[r] : most;
        common = pairs.valid[r] < common ? pairs.valid[r] : common;
    }
    gather_queries(job, pairs, q);
    for (int64_t i = 0; i * KV_BLOCK < most; ++i)
        score_block<R>(chunk.key_block(i), q, job.dim, scores + i * KV_BLOCK);
    for (int r = 0; r < R; ++r)
        soften(scores + r * SCORE_STRIDE, pairs.valid[r], pairs.maximum + r, pairs.sum + r);
    for (int64_t i = 0; i < R * out_stride; ++i) out[i] = 0.0f;
    for (int64_t d = 0; d < job.dim; d += LANES) {
        weigh<R>(chunk, scores, 0, common, d, out, out_stride);
        for (int r = 0; r < R; ++r)
            weigh<1>(chunk, scores + r * SCORE_STRIDE, common, pairs.valid[r], d,
                     out + r * out_stride, out_stride);
    }
    float* partial = job.partial + pairs.first * (job.dim + 2);
    for (int r = 0; r < R; ++r, partial += job.dim + 2) {
        partial[0] = pairs.maximum[r];
        partial[1] = pairs.sum[r];
        std::memcpy(partial + 2, out + r * out_stride, size_t(job.dim) * 4);
    }
}

template <class T> struct AttendTable {
    using Function = void (*)(const Chunk<T>&, Pairs&);
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
            pairs.valid[i] = seen < 0 ? 0 : seen < CHUNK ? seen : CHUNK;
        }
        table.at[pairs.count](chunk, pairs);
    }
}

inline void merge(float* state, const float* partial, int64_t dim) {
    // A chunk behind the row's position holds nothing for it.
    if (partial[0] == MINUS_INFINITY) return;
    const float top = state[0] > partial[0] ? state[0] : partial[0];
    const V old = exp(set1(state[0] - top)), fresh = exp(set1(partial[0] - top));
    for (int64_t d = 1; d < dim + 2; d += LANES) {
        const int64_t n = dim + 2 - d < LANES ? dim + 2 - d : LANES;
        const V kept = mul(load_part(state + d, n), old);
        store_part(state + d, fma(load_part(partial + d, n), fresh, kept), n);
    }
    state[0] = top;
}

inline void finish(const float* state, float* out, int64_t dim) {
    const V sum = set1(state[1]);
    for (int64_t d = 0; d < dim; d += LANES) {
        const int64_t n = dim - d < LANES ? dim - d : LANES;
        store_part(out + d, div(load_part(state + 2 + d, n), sum), n);
    }
}

}  // namespace wager::WAGER_ISA
