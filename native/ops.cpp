#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"
#include "ops_product.h"
#include "pack.h"

namespace wager {
void Layer::check() const {
    require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
            "heads must be a positive multiple of kv_heads");
    require(dim > 0 && dim % 2 == 0 && dim <= MAX_HEAD_DIM,
            "head_dim must be even, from 2 to 512");
    for (const auto* norm : {&attn_norm, &mlp_norm, &attn_post_norm, &mlp_post_norm, &out_bias})
        require(norm->empty() || int64_t(norm->size()) == hidden,
                "norms and the bias of out must have hidden_size elements");
    require(qkv_bias.empty() || int64_t(qkv_bias.size()) == qkv_columns(),
            "qkv_bias has the wrong size");
    require(q_norm.empty() == k_norm.empty(), "q_norm and k_norm belong together");
    const bool whole = int64_t(q_norm.size()) == heads * dim;
    require(q_norm.empty() || (int64_t(q_norm.size()) == dim && int64_t(k_norm.size()) == dim) ||
                (whole && int64_t(k_norm.size()) == kv_heads * dim),
            "q_norm and k_norm must be as wide as a head, or as all of them");
    require(window >= 0 && rope >= -1, "window and rope must not be negative");
    require(qkv.n == qkv_columns() && qkv.k == hidden, "qkv has the wrong shape");
    require(out.n == hidden && out.k == heads * dim, "out has the wrong shape");
    const int64_t count = experts ? experts : 1;
    require(gate_up.n == count * 2 * intermediate && gate_up.k == hidden,
            "gate_up has the wrong shape");
    require(gate_up.kind == down.kind, "gate_up and down must be of one kind");
    require(intermediate % LANES == 0, "intermediate_size must be a multiple of 16");
    require(down.n == count * hidden && down.k == intermediate, "down has the wrong shape");
    if (!experts) return;
    require(router.n == experts && router.k == hidden && router.kind == WeightKind::f32,
            "router has the wrong shape or kind");
    require(experts_used >= 1 && experts_used <= experts, "experts_used is out of range");
    require(hidden % LANES == 0, "experts need a hidden_size that is a multiple of 16");
    require(mlp_post_norm.empty(), "experts with a norm at their output are not supported");
}

Batch::Batch(const int32_t* pos, int64_t rows, const int32_t* begin, int64_t requests,
             const int32_t* block_tables, int64_t width)
    : positions(pos, pos + rows),
      starts(begin, begin + requests + 1),
      tables(block_tables, block_tables + requests * width),
      owner(size_t(rows)),
      table_width(width) {
    require(starts.front() == 0 && starts.back() == rows, "row_starts must run from 0 to T");
    for (int64_t r = 0; r < requests; ++r) {
        const int64_t first = starts[size_t(r)], end = starts[size_t(r) + 1];
        require(first <= end && end <= rows, "row_starts must ascend");
        if (first == end) continue;
        require(positions[size_t(first)] >= 0, "positions must not be negative");
        for (int64_t row = first; row < end; ++row) {
            owner[size_t(row)] = int32_t(r);
            require(positions[size_t(row)] == positions[size_t(first)] + (row - first),
                    "positions of a request must be consecutive");
        }
        const int32_t last = positions[size_t(end) - 1];
        require(last / KV_BLOCK < width, "block_tables: too narrow for a position");
        for (int64_t block = 0; block <= last / KV_BLOCK; ++block) {
            require(table(r)[block] >= 0, "block_tables: a position has no block");
            largest_block = std::max(largest_block, table(r)[block]);
        }
        largest_position = std::max(largest_position, last);
    }
}

Tiles Ops::tiles(Buffer& buffer, const Matrix& matrix, int64_t rows) {
    const ProductKernels& of = kernels_->of(matrix.kind);
    const int64_t words = of.words(matrix.k);
    const auto* data = reinterpret_cast<uint32_t*>(buffer.floats(words * rows));
    return {data, rows, words, (rows + of.max_rows - 1) / of.max_rows};
}

void Ops::embed(const Matrix& table, const int32_t* tokens, int64_t rows, float scale,
                float* out) {
    for (int64_t i = 0; i < rows; ++i)
        require(tokens[i] >= 0 && tokens[i] < table.n, "a token id is outside the vocabulary");
    struct Context { const Matrix& table; const int32_t* tokens; float scale; float* out; };
    Context context{table, tokens, scale, out};
    const std::lock_guard lock(mutex_);
    const Phase phase{rows, [](void* c, int64_t i) {
        const Context& at = *static_cast<Context*>(c);
        float* row = at.out + i * at.table.k;
        unpack_row(at.table.data, at.tokens[i], at.table.k, at.table.kind, row);
        if (at.scale != 1.0f)
            for (int64_t j = 0; j < at.table.k; ++j) row[j] *= at.scale;
    }};
    pool_.run(&phase, 1, &context);
}

struct Ops::AttnIn {
    const Kernels& kernels;
    const Layer& layer;
    const Batch& batch;
    const KvPool& kv;
    const float* rope;      // null: nothing is turned
    int64_t index;
    float* qkv;
    float* q;
    Normed in;
    Product product;

    // Neighbouring positions share the cache lines of a block's keys: they stay in one job.
    static constexpr int64_t ROWS = 16;
    int64_t jobs() const { return (batch.rows() + ROWS - 1) / ROWS * layer.kv_heads; }

    void rotate_and_store(int64_t job) const {
        const int64_t first = job / layer.kv_heads * ROWS, kv_head = job % layer.kv_heads;
        for (int64_t row = first; row < std::min(first + ROWS, batch.rows()); ++row)
            rotate_and_store(row, kv_head);
    }

    void rotate_and_store(int64_t row, int64_t kv_head) const {
        const int64_t dim = layer.dim, group = layer.heads / layer.kv_heads;
        const int64_t position = batch.positions[size_t(row)], keys = layer.heads * dim;
        const float* from = qkv + row * layer.qkv_columns();
        const Norm q_norm = norm(from, layer.q_norm, keys);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
            turn(from, head, q_norm, position, q + (row * layer.heads + head) * dim);
        const int64_t block = batch.table(batch.owner[size_t(row)])[position / KV_BLOCK];
        float turned[MAX_HEAD_DIM];
        turn(from + keys, kv_head, norm(from + keys, layer.k_norm, layer.kv_heads * dim), position,
             turned);
        store(turned, from + keys + (layer.kv_heads + kv_head) * dim,
              kv.offset(index, block, kv_head), position % KV_BLOCK);
    }

    // Of queries or keys: over all heads of a row, whose scale is known then, or over each.
    struct Norm {
        const std::vector<float>& weight;
        bool whole;
        float scale;
    };

    // The scale is worked out again for each head: cheaper than to wait for it.
    Norm norm(const float* from, const std::vector<float>& weight, int64_t width) const {
        const bool whole = int64_t(weight.size()) == width && width != layer.dim;
        return {weight, whole, whole ? kernels.rms_scale(from, layer.eps, width) : 0.0f};
    }

    void turn(const float* from, int64_t head, const Norm& by, int64_t position, float* to) const {
        const int64_t dim = layer.dim, half = dim / 2;
        const float* x = from + head * dim;
        float normed[MAX_HEAD_DIM];
        if (!by.weight.empty()) {
            const float scale = by.whole ? by.scale : kernels.rms_scale(x, layer.eps, dim);
            kernels.apply_norm(x, scale, by.weight.data() + (by.whole ? head * dim : 0), normed,
                               dim);
            x = normed;
        }
        if (!rope) {
            std::memcpy(to, x, size_t(dim) * 4);
            return;
        }
        const float* cosine = rope + position * dim;
        kernels.rotate(x, cosine, cosine + half, to, half);
    }

    void store(const float* key, const float* value, int64_t offset, int64_t slot) const {
        const int64_t dim = layer.dim;
        if (kv.kind == KvKind::f32) {
            float* keys = reinterpret_cast<float*>(kv.keys + offset) + slot;
            for (int64_t d = 0; d < dim; ++d) keys[d * KV_BLOCK] = key[d];
            std::memcpy(kv.values + offset + slot * dim * 4, value, size_t(dim) * 4);
            return;
        }
        uint16_t rounded[MAX_HEAD_DIM];
        kernels.to_half(key, rounded, dim);
        uint16_t* keys = reinterpret_cast<uint16_t*>(kv.keys + offset) + slot;
        for (int64_t d = 0; d < dim; ++d) keys[d * KV_BLOCK] = rounded[d];
        kernels.to_half(value, reinterpret_cast<uint16_t*>(kv.values + offset) + slot * dim, dim);
    }
};

void Ops::attn_in(const Layer& layer, const float* x, const Batch& batch,
                  const std::vector<Rope>& ropes, const KvPool& kv, int64_t index, float* q) {
    require(layer.rope < int64_t(ropes.size()), "the layer's rotary table is missing");
    const Rope rope = layer.rope < 0 ? Rope{nullptr, 0} : ropes[size_t(layer.rope)];
    require(!rope.table || batch.largest_position < rope.rows,
            "a position is beyond the rotary table");
    require(batch.largest_block < kv.blocks, "block_tables: a block id is outside the pool");
    require(index >= 0 && index < kv.layers, "the pool has no such layer");
    require(kv.kv_heads == layer.kv_heads && kv.dim == layer.dim, "the pool is of another model");
    const std::lock_guard lock(mutex_);
    const int64_t rows = batch.rows(), columns = layer.qkv_columns();
    float* qkv = wide_.floats(rows * columns);
    const Tiles x_tiles = tiles(words_, layer.qkv, rows);
    const Output to{qkv, columns, false, optional(layer.qkv_bias)};
    AttnIn context{*kernels_, layer, batch, kv, rope.table, index, qkv, q,
                   {x, nullptr, optional(layer.attn_norm), layer.eps,
                    {*kernels_, threads(), layer.qkv, x_tiles}},
                   Product(*kernels_, threads(), layer.qkv, x_tiles, to)};
    const Phase phases[] = {
        phase_of<&AttnIn::in>(context),
        phase_of<&AttnIn::product>(context),
        {context.jobs(), [](void* c, int64_t i) { static_cast<AttnIn*>(c)->rotate_and_store(i); }},
    };
    pool_.run(phases, 3, &context);
}

// What a block adds to its input where a norm stands at its output: x += factor * norm(y).
struct Ops::Added {
    const Kernels& kernels;
    const std::vector<float>& norm;      // empty: the product has added it already
    float eps, factor;
    float* y;
    float* x;
    int64_t rows, hidden;

    Output output(const std::vector<float>& bias) const {
        if (norm.empty()) return {x, hidden, true, optional(bias), factor};
        return {y, hidden, false, optional(bias)};
    }
    int64_t jobs() const { return norm.empty() ? 0 : rows; }
    void run(int64_t row) const {
        float* from = y + row * hidden;
        const float scale = kernels.rms_scale(from, eps, hidden);
        kernels.apply_norm(from, scale, norm.data(), from, hidden);
        kernels.add_scaled(x + row * hidden, from, factor, hidden);
    }
};

void Ops::attn_out(const Layer& layer, const float* attended, float* x, int64_t rows) {
    struct Context { Normed in; Added added; Product product; };
    const std::lock_guard lock(mutex_);
    const Tiles x_tiles = tiles(words_, layer.out, rows);
    float* y = layer.attn_post_norm.empty() ? nullptr : wide_.floats(rows * layer.hidden);
    const Added added{*kernels_, layer.attn_post_norm, layer.eps, layer.residual_scale,
                      y, x, rows, layer.hidden};
    Context context{{attended, nullptr, nullptr, 0.0f, {*kernels_, threads(), layer.out, x_tiles}},
                    added,
                    Product(*kernels_, threads(), layer.out, x_tiles, added.output(layer.out_bias))};
    const Phase phases[] = {
        phase_of<&Context::in>(context),
        phase_of<&Context::product>(context),
        phase_of<&Context::added>(context),
    };
    pool_.run(phases, y ? 3 : 2, &context);
}

void Ops::mlp(const Layer& layer, float* x, int64_t rows) {
    if (layer.experts) return mixture(layer, x, rows);
    struct Context { Normed in; Added added; Product gate_up, down; };
    const std::lock_guard lock(mutex_);
    const Tiles x_tiles = tiles(words_, layer.gate_up, rows);
    const Tiles middle = tiles(middle_, layer.down, rows);
    float* y = layer.mlp_post_norm.empty() ? nullptr : wide_.floats(rows * layer.hidden);
    const Added added{*kernels_, layer.mlp_post_norm, layer.eps, layer.residual_scale,
                      y, x, rows, layer.hidden};
    Context context{
        {x, nullptr, optional(layer.mlp_norm), layer.eps,
         {*kernels_, threads(), layer.gate_up, x_tiles}},
        added,
        Product(*kernels_, threads(), layer.gate_up, x_tiles, {}, &middle, layer.gelu),
        Product(*kernels_, threads(), layer.down, middle, added.output({}))};
    const Phase phases[] = {
        phase_of<&Context::in>(context),
        phase_of<&Context::gate_up>(context),
        phase_of<&Context::down>(context),
        phase_of<&Context::added>(context),
    };
    pool_.run(phases, y ? 4 : 3, &context);
}

void Ops::logits(const float* norm, float eps, const Matrix& head, const float* x, int64_t x_rows,
                 const int32_t* rows, int64_t count, const Output& to) {
    for (int64_t i = 0; i < count; ++i)
        require(rows[i] >= 0 && rows[i] < x_rows, "logits: a row is outside the batch");
    struct Context { Normed in; Product product; };
    const std::lock_guard lock(mutex_);
    const Tiles x_tiles = tiles(words_, head, count);
    Context context{{x, rows, norm, eps, {*kernels_, threads(), head, x_tiles}},
                    Product(*kernels_, threads(), head, x_tiles, to)};
    const Phase phases[] = {
        phase_of<&Context::in>(context),
        phase_of<&Context::product>(context),
    };
    if (count) pool_.run(phases, 2, &context);
}

void Ops::decode(const std::vector<const Layer*>& layers, int64_t first, float* x,
                 const Batch& batch, const std::vector<Rope>& ropes, const KvPool& kv) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < layers.size(); ++i) {
        const Layer& layer = *layers[i];
        const int64_t size = batch.rows() * layer.heads * layer.dim, index = first + int64_t(i);
        float* q = queries_.floats(size);
        float* attended = attended_.floats(size);
        attn_in(layer, x, batch, ropes, kv, index, q);
        attention(layer, q, batch, kv, index, attended);
        attn_out(layer, attended, x, batch.rows());
        mlp(layer, x, batch.rows());
    }
}

}  // namespace wager
