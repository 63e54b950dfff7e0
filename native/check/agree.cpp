// Compares the kernels of every instruction set of this build with those in plain C++, bit for bit:
// whole layers over a paged cache, products of every kind of weights, and picking tokens. A program
// of its own, so that it runs under an emulator too; see tests/ops/test_emulated.py.
#include <cstdio>
#include <cstring>
#include <random>

#include "isa_choice.h"
#include "ops.h"
#include "pack.h"

using namespace wager;

namespace {

std::mt19937 engine(7);

std::vector<float> drawn(int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(engine);
    return values;
}

struct Packed {
    std::vector<uint8_t> bytes;
    Matrix matrix;
    Packed(int64_t n, int64_t k, WeightKind kind)
        : bytes(size_t((n + LANES - 1) / LANES * panel_bytes(k, kind))),
          matrix{bytes.data(), n, k, kind} {
        const std::vector<float> weight = drawn(n * k, 0.3f);
        pack_rows(bytes.data(), weight.data(), 0, n, n, k, kind);
    }
};

// What a layer may have beside its matrices.
struct Trait {
    const char* name;
    bool bias, post_norms, gelu;
    int64_t norm_width;      // of q and k: 0 none, 1 a head, 2 all
    int64_t window, experts;
    float cap;
};

constexpr Trait TRAITS[] = {
    {"plain", false, false, false, 0, 0, 0, 0.0f},
    {"biases, head norms, window", true, false, false, 1, 20, 0, 0.0f},
    {"norms behind, gelu, caps", false, true, true, 2, 130, 0, 3.0f},
    {"experts", false, false, false, 0, 0, 5, 0.0f},
};
constexpr int64_t HEADS = 6, KV_HEADS = 2, DIM = 32, HIDDEN = 96, INNER = 64, ROWS = 150, V = 77;

struct Model {
    Packed qkv, out, gate_up, down, router, table;
    Layer layer;
    Model(const Trait& trait, WeightKind kind)
        : qkv((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, kind),
          out(HIDDEN, HEADS * DIM, kind),
          gate_up((trait.experts ? trait.experts : 1) * 2 * INNER, HIDDEN, kind),
          down((trait.experts ? trait.experts : 1) * HIDDEN, INNER, kind),
          router(trait.experts ? trait.experts : 1, HIDDEN, WeightKind::f32),
          table(V, HIDDEN, kind),
          layer{HEADS, KV_HEADS, DIM, HIDDEN, INNER, 1e-5f, 0.2f, trait.cap, 0.7f, trait.window, 0,
                trait.gelu, trait.experts, trait.experts ? 2 : 0, true, drawn(HIDDEN),
                drawn(HIDDEN), {}, {}, {}, {}, {}, {}, qkv.matrix, out.matrix, gate_up.matrix,
                down.matrix, router.matrix} {
        if (trait.bias) layer.qkv_bias = drawn(layer.qkv_columns());
        if (trait.bias) layer.out_bias = drawn(HIDDEN);
        if (trait.post_norms) layer.attn_post_norm = drawn(HIDDEN);
        if (trait.post_norms) layer.mlp_post_norm = drawn(HIDDEN);
        if (trait.norm_width) {
            layer.q_norm = drawn(trait.norm_width == 1 ? DIM : HEADS * DIM);
            layer.k_norm = drawn(trait.norm_width == 1 ? DIM : KV_HEADS * DIM);
        }
        layer.check();
    }
};

// Logits of a prompt that goes through the layer in pieces, and through it once more.
std::vector<float> run(const Kernels& kernels, const Model& model, KvKind kv, int threads,
                       const std::vector<float>& rope, float cap) {
    Ops ops(&kernels, threads);
    constexpr int64_t blocks = ROWS / KV_BLOCK + 1;
    KvPool pool{nullptr, nullptr, 2, blocks, KV_HEADS, DIM, kv};
    const int64_t bytes = pool.offset(0, blocks, 0) + LANES * pool.element();
    std::vector<uint8_t> keys(static_cast<size_t>(bytes)), values(static_cast<size_t>(bytes));
    pool.keys = keys.data();
    pool.values = values.data();
    std::vector<int32_t> table(blocks), tokens(ROWS);
    for (int64_t i = 0; i < blocks; ++i) table[size_t(i)] = int32_t(blocks - 1 - i);
    for (int64_t i = 0; i < ROWS; ++i) tokens[size_t(i)] = int32_t(i * 31 % V);
    std::vector<float> found(size_t(ROWS * V));
    int64_t done = 0;
    for (const int64_t rows : {int64_t(1), int64_t(37), int64_t(9), int64_t(2), ROWS - 49}) {
        std::vector<int32_t> positions(static_cast<size_t>(rows)), picked(positions.size());
        for (int64_t i = 0; i < rows; ++i) positions[size_t(i)] = int32_t(done + i);
        for (int64_t i = 0; i < rows; ++i) picked[size_t(i)] = int32_t(i);
        const int32_t starts[2] = {0, int32_t(rows)};
        const Batch batch(positions.data(), rows, starts, 1, table.data(), blocks);
        std::vector<float> x(size_t(rows * HIDDEN));
        ops.embed(model.table.matrix, tokens.data() + done, rows, 1.5f, x.data());
        ops.decode({&model.layer, &model.layer}, 0, x.data(), batch, {{rope.data(), ROWS}}, pool);
        const std::vector<float> ones(HIDDEN, 1.0f);
        ops.logits(ones.data(), 1e-5f, model.table.matrix, x.data(), rows, picked.data(), rows,
                   {found.data() + done * V, V, false, nullptr, 0.5f, cap});
        done += rows;
    }
    return found;
}

bool same(const void* a, const void* b, size_t bytes) { return !std::memcmp(a, b, bytes); }

// The kernels that pick a token.
bool picks_agree(const Kernels& a, const Kernels& b) {
    bool agree = true;
    for (int64_t n : {5, 64, 1000, 5003}) {
        const std::vector<float> logits = drawn(n, 4.0f);
        std::vector<float> left(size_t(n) + 16), right(size_t(n) + 16);
        std::vector<float> max_a(size_t(n / 64 + 1)), max_b(max_a.size());
        const Top top = a.block_max(logits.data(), n, max_a.data());
        const Top other = b.block_max(logits.data(), n, max_b.data());
        agree &= top.id == other.id && same(&top.value, &other.value, 4);
        agree &= same(max_a.data(), max_b.data(), size_t((n + 63) / 64) * 4);
        const int64_t count = a.at_least(logits.data(), n, 1.0f, left.data());
        agree &= count == b.at_least(logits.data(), n, 1.0f, right.data());
        agree &= same(left.data(), right.data(), size_t(count) * 4);
        const double sum = a.exp_sum(logits.data(), n, top.value, 1.3f, -2.0f);
        const double sum_b = b.exp_sum(logits.data(), n, top.value, 1.3f, -2.0f);
        agree &= same(&sum, &sum_b, 8);
        a.exp_values(logits.data(), n, top.value, 0.7f, left.data());
        b.exp_values(logits.data(), n, top.value, 0.7f, right.data());
        agree &= same(left.data(), right.data(), size_t(n) * 4);
        for (uint32_t position = 0; position < 200; ++position) {
            const Philox noise{{3, 4}, position, 1, 2};
            agree &= a.gumbel_max(logits.data(), n, top.value, top.id, 0.8f, -1.0f, max_a.data(),
                                  noise) ==
                     b.gumbel_max(logits.data(), n, top.value, top.id, 0.8f, -1.0f, nullptr, noise);
        }
    }
    return agree;
}

}  // namespace

int main() {
    std::vector<float> rope(size_t(ROWS * DIM));
    for (int64_t i = 0; i < ROWS; ++i)
        for (int64_t d = 0; d < DIM / 2; ++d) {
            const double angle = double(i) / (1.0 + double(d * d));
            rope[size_t(i * DIM + d)] = float(__builtin_cos(angle));
            rope[size_t(i * DIM + DIM / 2 + d)] = float(__builtin_sin(angle));
        }
    int compared = 0, wrong = 0;
    const auto told = [&](bool agree, const char* isa, const char* what, int kind) {
        ++compared;
        if (agree) return;
        ++wrong;
        std::printf("%s differs from plain C++: %s, weights %d\n", isa, what, kind);
    };
    const auto usable = usable_kernels();
    const Kernels& plain = *usable.back();
    std::printf("instruction sets:");
    for (const Kernels* kernels : usable) std::printf(" %s", kernels->name);
    std::printf("\n");
    for (const Kernels* kernels : usable) {
        if (kernels == &plain) continue;
        told(kernels_agree(*kernels), kernels->name, "the check at load", -1);
        told(picks_agree(plain, *kernels), kernels->name, "picking", -1);
    }
    for (const Trait& trait : TRAITS)
        for (int kind = 0; kind < WEIGHT_KINDS; ++kind) {
            const Model model(trait, WeightKind(kind));
            for (const KvKind kv : {KvKind::f32, KvKind::f16}) {
                const auto want = run(plain, model, kv, 1, rope, trait.cap);
                for (const Kernels* kernels : usable)
                    for (const int threads : {1, 3}) {
                        const auto got = run(*kernels, model, kv, threads, rope, trait.cap);
                        told(same(got.data(), want.data(), got.size() * 4), kernels->name,
                             trait.name, kind);
                    }
            }
        }
    std::printf("%d comparisons, %d differ\n", compared, wrong);
    return wrong != 0;
}
