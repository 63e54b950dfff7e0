#include <algorithm>
#include <cstring>

#include "ops.h"

namespace wager {
namespace {

// Rows of one request that share loads of keys and values.
struct Item {
    int32_t request;
    int64_t row_begin, row_end;     // within the request
    int64_t first_chunk, chunks;
    int64_t offset;                 // of its partial results, in floats
};

// (row, head) pairs of an item: a few register blocks' worth.
constexpr int64_t ITEM_PAIRS = 48;

}  // namespace

struct Ops::Attention {
    const Kernels& kernels;
    const Layer& layer;
    const Batch& batch;
    const KvPool& kv;
    int64_t index;
    const float* q;
    float* out;
    float* partial;
    std::vector<Item> items;
    std::vector<std::pair<int32_t, int32_t>> chunk_jobs;     // (item, chunk)

    int64_t group() const { return layer.heads / layer.kv_heads; }
    int64_t pairs(const Item& item) const { return (item.row_end - item.row_begin) * group(); }
    int64_t slot() const { return partial_size(layer.dim); }

    int64_t make_items() {
        const int64_t rows_per_item = std::max<int64_t>(1, ITEM_PAIRS / group());
        int64_t size = 0;
        for (int64_t r = 0; r < batch.requests(); ++r) {
            const int64_t start = batch.starts[size_t(r)];
            const int64_t rows = batch.starts[size_t(r) + 1] - start;
            const int64_t parts = (rows + rows_per_item - 1) / rows_per_item;
            for (int64_t part = 0; part < parts; ++part) {
                const int64_t row = part * rows / parts, end = (part + 1) * rows / parts;
                const int64_t last = batch.positions[size_t(start + end - 1)];
                const int64_t seen = batch.positions[size_t(start + row)] + 1;
                const int64_t first = layer.window && seen > layer.window
                                          ? (seen - layer.window) / CHUNK : 0;
                items.push_back({int32_t(r), row, end, first, last / CHUNK + 1 - first, size});
                size += items.back().chunks * pairs(items.back()) * slot() * layer.kv_heads;
                for (int64_t chunk = 0; chunk < items.back().chunks; ++chunk)
                    chunk_jobs.emplace_back(int32_t(items.size()) - 1, int32_t(chunk));
            }
        }
        return size;
    }

    AttendJob job(const Item& item, int64_t kv_head, int64_t chunk, float* into) const {
        const int64_t start = batch.starts[size_t(item.request)], dim = layer.dim;
        const int64_t base = kv.offset(index, 0, kv_head);
        return {q + (start * layer.heads + kv_head * group()) * dim, layer.heads * dim,
                batch.positions.data() + start, item.row_begin, item.row_end, group(), dim,
                layer.score_scale, layer.score_cap, layer.window, kv.keys + base, kv.values + base, kv.block_bytes(),
                batch.table(item.request), item.first_chunk + chunk, into};
    }

    void attend(const AttendJob& job) const {
        (kv.kind == KvKind::f32 ? kernels.attend_f32 : kernels.attend_f16)(job);
    }

    float* result(const Item& item, int64_t kv_head, int64_t pair) const {
        const int64_t row = batch.starts[size_t(item.request)] + item.row_begin + pair / group();
        return out + (row * layer.heads + kv_head * group() + pair % group()) * layer.dim;
    }

    // One item, all its chunks in order.
    void whole(int64_t number) const {
        thread_local std::vector<float> scratch;
        const Item& item = items[size_t(number / layer.kv_heads)];
        const int64_t kv_head = number % layer.kv_heads, size = pairs(item) * slot();
        if (int64_t(scratch.size()) < 2 * size) scratch.resize(size_t(2 * size));
        float* state = scratch.data();
        for (int64_t chunk = 0; chunk < item.chunks; ++chunk) {
            attend(job(item, kv_head, chunk, chunk ? state + size : state));
            for (int64_t pair = 0; chunk && pair < pairs(item); ++pair)
                kernels.merge(state + pair * slot(), state + size + pair * slot(), layer.dim);
        }
        for (int64_t pair = 0; pair < pairs(item); ++pair)
            kernels.finish(state + pair * slot(), result(item, kv_head, pair), layer.dim);
    }

    float* partials(const Item& item, int64_t kv_head, int64_t chunk) const {
        return partial + item.offset + (kv_head * item.chunks + chunk) * pairs(item) * slot();
    }

    void one_chunk(int64_t number) const {
        const auto [item, chunk] = chunk_jobs[size_t(number / layer.kv_heads)];
        const int64_t kv_head = number % layer.kv_heads;
        const Item& of = items[size_t(item)];
        attend(job(of, kv_head, chunk, partials(of, kv_head, chunk)));
    }

    // Pairs of an item whose chunks one job merges.
    static constexpr int64_t MERGE = 8;
    int64_t merge_parts() const { return (ITEM_PAIRS + group() + MERGE - 1) / MERGE; }

    // The same merges as in whole(), in the same order.
    void merge_chunks(int64_t number) const {
        const Item& item = items[size_t(number / merge_parts() / layer.kv_heads)];
        const int64_t kv_head = number / merge_parts() % layer.kv_heads;
        const int64_t first = number % merge_parts() * MERGE;
        for (int64_t pair = first; pair < std::min(first + MERGE, pairs(item)); ++pair) {
            float* state = partials(item, kv_head, 0) + pair * slot();
            for (int64_t chunk = 1; chunk < item.chunks; ++chunk)
                kernels.merge(state, partials(item, kv_head, chunk) + pair * slot(), layer.dim);
            kernels.finish(state, result(item, kv_head, pair), layer.dim);
        }
    }
};

void Ops::attention(const Layer& layer, const float* q, const Batch& batch, const KvPool& kv,
                    int64_t index, float* out) {
    require(batch.largest_block < kv.blocks, "block_tables: a block id is outside the pool");
    require(index >= 0 && index < kv.layers, "the pool has no such layer");
    require(kv.kv_heads == layer.kv_heads && kv.dim == layer.dim, "the pool is of another model");
    const std::lock_guard lock(mutex_);
    Attention context{*kernels_, layer, batch, kv, index, q, out, nullptr, {}, {}};
    const int64_t size = context.make_items();
    const int64_t items = int64_t(context.items.size()) * layer.kv_heads;
    // Few items cannot keep the threads evenly busy: then the chunks are the jobs, and a second
    // phase merges them.
    if (items < 4 * threads() && context.chunk_jobs.size() > context.items.size()) {
        context.partial = partial_.floats(size);
        const Phase phases[] = {
            {int64_t(context.chunk_jobs.size()) * layer.kv_heads,
             [](void* c, int64_t i) { static_cast<Attention*>(c)->one_chunk(i); }},
            {items * context.merge_parts(),
             [](void* c, int64_t i) { static_cast<Attention*>(c)->merge_chunks(i); }},
        };
        pool_.run(phases, 2, &context);
        return;
    }
    const Phase phase{items, [](void* c, int64_t i) { static_cast<Attention*>(c)->whole(i); }};
    pool_.run(&phase, 1, &context);
}

}  // namespace wager
