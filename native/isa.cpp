#include "isa_choice.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <cstring>
#include <vector>

#include "pack.h"

namespace wager {
namespace {

bool machine_has(const char* name) {
#if defined(__aarch64__) && defined(__linux__)
    if (!std::strcmp(name, "neon")) return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__aarch64__)
    // Every 64-bit ARM processor of the other systems has them.
    if (!std::strcmp(name, "neon")) return true;
#endif
#if defined(__x86_64__) || defined(__i386__)
    if (!std::strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    if (!std::strcmp(name, "avx512"))
        return machine_has("avx2") && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    return !std::strcmp(name, "scalar");
}

// A number in [-1, 1) that looks random; the same everywhere.
float sample(uint32_t i) {
    i = i * 2654435761u + 12345u;
    i ^= i >> 15;
    i *= 2246822519u;
    i ^= i >> 13;
    return float(int32_t(i)) * 0x1p-31f;
}

std::vector<uint8_t> packed_sample(int64_t n, int64_t k, WeightKind kind) {
    std::vector<float> weight(size_t(n * k));
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = sample(uint32_t(i + size_t(n)));
    std::vector<uint8_t> packed(size_t((n + LANES - 1) / LANES * panel_bytes(k, kind)));
    pack_rows(packed.data(), weight.data(), 0, n, n, k, kind);
    return packed;
}

// Three rows through a norm, a gated product and a second product of the given kind.
std::vector<float> probe(const Kernels& kernels, WeightKind kind) {
    constexpr int64_t k = 96, middle = 32, n = 24, rows = 3;
    const ProductKernels& of = kernels.of(kind);
    const int64_t words[2] = {of.words(k), of.words(middle)};
    std::vector<float> x(rows * k), ones(k, 1.0f), out(rows * n);
    for (int64_t row = 0; row < rows; ++row) {
        float* at = x.data() + row * k;
        for (int64_t i = 0; i < k; ++i) at[i] = sample(uint32_t(100000 + row * k + i)) * 8.0f;
        kernels.apply_norm(at, kernels.rms_scale(at, 1e-5f, k), ones.data(), at, k);
    }
    std::vector<uint32_t> first(size_t(words[0] * rows)), second(size_t(words[1] * rows));
    of.pack(x.data(), k, rows, k, first.data());
    const auto gate_up = packed_sample(2 * middle, k, kind), down = packed_sample(n, middle, kind);
    const auto run = [&](bool gelu, const Output& to) {
        const ProductJob gated{gate_up.data(), 2 * middle, k, {first.data(), rows, words[0], 1},
                               {}, 0, 2, 0, 1, second.data(), words[1], gelu};
        const ProductJob last{down.data(), n, middle, {second.data(), rows, words[1], 1},
                              to, 0, 2, 0, 1};
        of.gated_product(gated);
        of.product(last);
    };
    run(false, {out.data(), n});
    // The same rows once more, added, by the other ways to gate and to end a product.
    run(true, {out.data(), n, true, x.data(), 0.5f, 3.0f});
    return out;
}

}  // namespace

bool kernels_agree(const Kernels& kernels) {
    for (const WeightKind kind : {WeightKind::f32, WeightKind::int8, WeightKind::int4, WeightKind::bf16}) {
        const std::vector<float> got = probe(kernels, kind), want = probe(*scalar_kernels(), kind);
        if (std::memcmp(got.data(), want.data(), got.size() * sizeof(float))) return false;
    }
    const uint32_t counter[4] = {1, 2, 3, 4}, key[2] = {5, 6};
    uint32_t got[4], want[4];
    kernels.philox(counter, key, got);
    scalar_kernels()->philox(counter, key, want);
    return !std::memcmp(got, want, sizeof got);
}

std::vector<const Kernels*> built_kernels() {
    std::vector<const Kernels*> built;
    for (const Kernels* kernels : {avx512_kernels(), avx2_kernels(), neon_kernels(), scalar_kernels()})
        if (kernels) built.push_back(kernels);
    return built;
}

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> usable;
    for (const Kernels* kernels : built_kernels())
        if (machine_has(kernels->name)) usable.push_back(kernels);
    return usable;
}

}  // namespace wager
