// wager._native: the blocks. Arguments are checked here or in ops.cpp before any kernel sees
// them; the interpreter lock is released while kernels run.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>

#include "arrays.h"
#include "isa_choice.h"
#include "pack.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace wager;

namespace {

// What keeps the memory behind a handle alive travels with it.
struct HeldMatrix : Matrix { nb::object owner; };
struct HeldLayer : Layer { std::vector<nb::object> owners; };
struct HeldPool : KvPool { nb::object keys_owner, values_owner; };

int64_t packed_bytes(int64_t n, int64_t k, WeightKind kind) {
    constexpr int64_t most = int64_t(1) << 40;
    require(n > 0 && k > 0 && n <= most / k, "a matrix must have from 1 to 2^40 elements");
    require(!in_groups(kind) || k % GROUP == 0,
            "quantised weights need K to be a multiple of 32");
    return (n + LANES - 1) / LANES * panel_bytes(k, kind);
}

HeldMatrix* make_matrix(View<const uint8_t, 1> data, int64_t n, int64_t k,
                        const std::string& kind) {
    auto held = std::make_unique<HeldMatrix>();
    static_cast<Matrix&>(*held) = {data.data(), n, k, weight_kind(kind)};
    require(int64_t(data.shape(0)) == packed_bytes(n, k, held->kind),
            "packed matrix: the number of bytes does not fit its shape");
    held->owner = nb::cast(data);
    return held.release();
}

std::string pack_into(View<uint8_t, 1> out, Floats2 weight, int64_t first_row, int64_t n,
                      const std::string& kind_name) {
    const WeightKind kind = weight_kind(kind_name);
    const int64_t rows = int64_t(weight.shape(0)), k = int64_t(weight.shape(1));
    require(int64_t(out.shape(0)) == packed_bytes(n, k, kind), "pack_into: out has the wrong size");
    require(first_row >= 0 && first_row % LANES == 0 && first_row + rows <= n,
            "pack_into: rows outside the matrix, or not on a multiple of PACK_ROWS");
    const nb::gil_scoped_release unlocked;
    switch (pack_rows(out.data(), weight.data(), first_row, rows, n, k, kind)) {
        case PackResult::not_finite: return "not finite";
        case PackResult::too_large: return "too large for " + kind_name;
        case PackResult::ok: break;
    }
    return "";
}

using MaybeFloats1 = std::optional<Floats1>;

std::vector<float> copied(const MaybeFloats1& values) {
    if (!values) return {};
    return {values->data(), values->data() + values->shape(0)};
}

// The constants of a layer travel by name, as they are many.
template <class T> T constant(const nb::dict& from, const char* name) {
    return nb::cast<T>(from[name]);
}

HeldLayer* make_layer(const nb::dict& constants, const HeldMatrix& qkv, const HeldMatrix& out,
                      const HeldMatrix& gate_up, const HeldMatrix& down, MaybeFloats1 attn_norm,
                      MaybeFloats1 mlp_norm, MaybeFloats1 attn_post_norm,
                      MaybeFloats1 mlp_post_norm, MaybeFloats1 qkv_bias, MaybeFloats1 out_bias,
                      MaybeFloats1 q_norm, MaybeFloats1 k_norm, const HeldMatrix* router) {
    auto layer = std::make_unique<HeldLayer>();
    layer->heads = constant<int64_t>(constants, "heads");
    layer->kv_heads = constant<int64_t>(constants, "kv_heads");
    layer->dim = constant<int64_t>(constants, "dim");
    layer->hidden = qkv.k;
    layer->intermediate = down.k;
    layer->eps = constant<float>(constants, "eps");
    layer->score_scale = constant<float>(constants, "score_scale");
    layer->score_cap = constant<float>(constants, "score_cap");
    layer->residual_scale = constant<float>(constants, "residual_scale");
    layer->window = constant<int64_t>(constants, "window");
    layer->rope = constant<int64_t>(constants, "rope");
    layer->gelu = constant<bool>(constants, "gelu");
    layer->experts = constant<int64_t>(constants, "experts");
    layer->experts_used = constant<int64_t>(constants, "experts_used");
    layer->normalised = constant<bool>(constants, "normalised");
    layer->attn_norm = copied(attn_norm);
    layer->mlp_norm = copied(mlp_norm);
    layer->attn_post_norm = copied(attn_post_norm);
    layer->mlp_post_norm = copied(mlp_post_norm);
    layer->qkv_bias = copied(qkv_bias);
    layer->out_bias = copied(out_bias);
    layer->q_norm = copied(q_norm);
    layer->k_norm = copied(k_norm);
    layer->qkv = qkv;
    layer->out = out;
    layer->gate_up = gate_up;
    layer->down = down;
    layer->owners = {qkv.owner, out.owner, gate_up.owner, down.owner};
    if (router) {
        layer->router = *router;
        layer->owners.push_back(router->owner);
    }
    layer->check();
    return layer.release();
}

// `keys` and `values` are flat bytes with room for one vector behind the last value.
HeldPool* make_pool(View<uint8_t, 1> keys, View<uint8_t, 1> values, int64_t layers, int64_t blocks,
                    int64_t kv_heads, int64_t dim, const std::string& kind) {
    require(kind == "f32" || kind == "f16", "KV kind must be f32 or f16");
    require(layers > 0 && blocks > 0 && kv_heads > 0 && dim > 0 && layers < 1 << 16 &&
                blocks < int64_t(1) << 31 && kv_heads < 1 << 16 && dim <= MAX_HEAD_DIM,
            "KV pool: a dimension is out of range");
    auto pool = std::make_unique<HeldPool>();
    static_cast<KvPool&>(*pool) = {keys.data(), values.data(), layers, blocks, kv_heads, dim,
                                   kind == "f32" ? KvKind::f32 : KvKind::f16};
    const int64_t bytes = pool->offset(0, blocks, 0) + LANES * pool->element();
    require(int64_t(keys.shape(0)) >= bytes && int64_t(values.shape(0)) >= bytes,
            "KV pool: too few bytes");
    pool->keys_owner = nb::cast(keys);
    pool->values_owner = nb::cast(values);
    return pool.release();
}

Batch* make_batch(Ints1 positions, Ints1 starts, Ints2 tables) {
    require(starts.shape(0) >= 1 && tables.shape(0) == starts.shape(0) - 1,
            "batch: row_starts and block_tables disagree on the number of requests");
    return new Batch(positions.data(), int64_t(positions.shape(0)), starts.data(),
                     int64_t(tables.shape(0)), tables.data(), int64_t(tables.shape(1)));
}

template <class Array> void check_rows(const Array& x, int64_t rows, int64_t columns) {
    require(int64_t(x.shape(0)) == rows && int64_t(x.shape(1)) == columns,
            "an array of rows has the wrong shape");
}

NewArray embed(Ops& ops, const HeldMatrix& table, Ints1 tokens, float scale) {
    const int64_t rows = int64_t(tokens.shape(0));
    NewArray out = new_array(rows, table.k);
    const nb::gil_scoped_release unlocked;
    ops.embed(table, tokens.data(), rows, scale, out.data());
    return out;
}

std::vector<Rope> ropes_of(const std::vector<Floats2>& tables) {
    std::vector<Rope> ropes;
    for (const Floats2& table : tables) ropes.push_back({table.data(), int64_t(table.shape(0))});
    return ropes;
}

void check_ropes(const std::vector<Floats2>& tables, const Layer& layer) {
    for (const Floats2& table : tables) check_rows(table, int64_t(table.shape(0)), layer.dim);
}

NewArray attn_in(Ops& ops, const HeldLayer& layer, Floats2 x, const Batch& batch,
                 const std::vector<Floats2>& tables, const HeldPool& pool, int64_t index) {
    check_rows(x, batch.rows(), layer.hidden);
    check_ropes(tables, layer);
    const std::vector<Rope> ropes = ropes_of(tables);
    NewArray q = new_array(batch.rows(), layer.heads * layer.dim);
    const nb::gil_scoped_release unlocked;
    ops.attn_in(layer, x.data(), batch, ropes, pool, index, q.data());
    return q;
}

NewArray attention(Ops& ops, const HeldLayer& layer, Floats2 q, const Batch& batch,
                   const HeldPool& pool, int64_t index) {
    check_rows(q, batch.rows(), layer.heads * layer.dim);
    NewArray out = new_array(batch.rows(), layer.heads * layer.dim);
    const nb::gil_scoped_release unlocked;
    ops.attention(layer, q.data(), batch, pool, index, out.data());
    return out;
}

void attn_out(Ops& ops, const HeldLayer& layer, Floats2 attended, MutableFloats2 x) {
    check_rows(attended, int64_t(x.shape(0)), layer.heads * layer.dim);
    check_rows(x, int64_t(x.shape(0)), layer.hidden);
    const nb::gil_scoped_release unlocked;
    ops.attn_out(layer, attended.data(), x.data(), int64_t(x.shape(0)));
}

void mlp(Ops& ops, const HeldLayer& layer, MutableFloats2 x) {
    check_rows(x, int64_t(x.shape(0)), layer.hidden);
    const nb::gil_scoped_release unlocked;
    ops.mlp(layer, x.data(), int64_t(x.shape(0)));
}

void decode(Ops& ops, const std::vector<const HeldLayer*>& layers, int64_t first, MutableFloats2 x,
            const Batch& batch, const std::vector<Floats2>& tables, const HeldPool& pool) {
    for (const HeldLayer* layer : layers) {
        check_rows(x, batch.rows(), layer->hidden);
        check_ropes(tables, *layer);
    }
    const std::vector<Rope> ropes = ropes_of(tables);
    const std::vector<const Layer*> plain(layers.begin(), layers.end());
    const nb::gil_scoped_release unlocked;
    ops.decode(plain, first, x.data(), batch, ropes, pool);
}

NewArray logits(Ops& ops, Floats1 norm, float eps, const HeldMatrix& head, Floats2 x, Ints1 rows,
                float scale, float cap) {
    check_rows(x, int64_t(x.shape(0)), head.k);
    require(int64_t(norm.shape(0)) == head.k, "logits: the norm has the wrong size");
    const int64_t count = int64_t(rows.shape(0));
    NewArray out = new_array(count, head.n);
    const nb::gil_scoped_release unlocked;
    const Output to{out.data(), head.n, false, nullptr, scale, cap};
    ops.logits(norm.data(), eps, head, x.data(), int64_t(x.shape(0)), rows.data(), count, to);
    return out;
}

std::vector<std::string> built_instruction_sets() {
    std::vector<std::string> sets;
    for (const Kernels* kernels : built_kernels()) sets.emplace_back(kernels->name);
    return sets;
}

std::vector<std::pair<std::string, bool>> instruction_sets() {
    std::vector<std::pair<std::string, bool>> sets;
    for (const Kernels* kernels : usable_kernels())
        sets.emplace_back(kernels->name, kernels_agree(*kernels));
    return sets;
}

Ops* make_ops(const std::string& instruction_set, int threads) {
    require(threads >= 1 && threads <= 1024, "threads must be from 1 to 1024");
    for (const Kernels* kernels : usable_kernels())
        if (instruction_set == kernels->name) return new Ops(kernels, threads);
    throw std::invalid_argument("this machine cannot run that instruction set");
}

}  // namespace

void bind_kernels(nb::module_& m) {
    nb::class_<HeldMatrix>(m, "Matrix")
        .def_ro("n", &HeldMatrix::n)
        .def_ro("k", &HeldMatrix::k);
    nb::class_<HeldLayer>(m, "Layer");
    nb::class_<HeldPool>(m, "Pool");
    nb::class_<Batch>(m, "Batch");
    m.def("packed_bytes", [](int64_t n, int64_t k, const std::string& kind) {
        return packed_bytes(n, k, weight_kind(kind));
    });
    m.def("pack_into", &pack_into, exact("out"), exact("weight"), "first_row"_a, "n"_a, "kind"_a,
          "Empty when all went well, else what is wrong with a weight.");
    m.def("matrix", &make_matrix, exact("data"), "n"_a, "k"_a, "kind"_a);
    m.def("layer", &make_layer, "constants"_a, "qkv"_a, "out"_a, "gate_up"_a, "down"_a,
          exact("attn_norm").none(), exact("mlp_norm").none(), exact("attn_post_norm").none(),
          exact("mlp_post_norm").none(), exact("qkv_bias").none(), exact("out_bias").none(),
          exact("q_norm").none(), exact("k_norm").none(), "router"_a.none());
    m.def("pool", &make_pool, exact("keys"), exact("values"), "layers"_a, "blocks"_a, "kv_heads"_a,
          "dim"_a, "kind"_a);
    m.def("batch", &make_batch, exact("positions"), exact("row_starts"), exact("block_tables"));
    m.def("built_instruction_sets", &built_instruction_sets, "Names, best first.");
    m.def("instruction_sets", &instruction_sets,
          "(name, whether its kernels give the known answers) of those that this machine can run, "
          "best first.");
    nb::class_<Ops>(m, "Ops")
        .def_prop_ro("instruction_set", [](const Ops& ops) { return ops.kernels().name; })
        .def_prop_ro("threads", &Ops::threads)
        .def("embed", &embed, "table"_a, exact("tokens"), "scale"_a)
        .def("attn_in", &attn_in, "layer"_a, exact("x"), "batch"_a, exact("ropes"), "pool"_a,
             "index"_a)
        .def("attention", &attention, "layer"_a, exact("q"), "batch"_a, "pool"_a, "index"_a)
        .def("attn_out", &attn_out, "layer"_a, exact("attended"), exact("x"))
        .def("mlp", &mlp, "layer"_a, exact("x"))
        .def("decode", &decode, "layers"_a, "first"_a, exact("x"), "batch"_a, exact("ropes"),
             "pool"_a)
        .def("logits", &logits, exact("norm"), "eps"_a, "head"_a, exact("x"), exact("rows"),
             "scale"_a, "cap"_a);
    m.def("ops", &make_ops);
}
