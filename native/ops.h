// The fused blocks: kernels of one instruction set, spread over a pool of threads.
#pragma once

#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace wager {

// A shape, an index or an option that does not fit; becomes ValueError.
inline void require(bool holds, const char* message) {
    if (!holds) throw std::invalid_argument(message);
}

struct Matrix {
    const uint8_t* data;
    int64_t n, k;
    WeightKind kind;
    int64_t panels() const { return (n + LANES - 1) / LANES; }
};

struct Layer {
    int64_t heads, kv_heads, dim, hidden, intermediate;
    float eps, score_scale, score_cap, residual_scale;
    int64_t window;      // positions that a row sees; 0: all
    int64_t rope;        // which of the rotary tables; -1: none
    bool gelu;
    int64_t experts, experts_used;      // 0: there is one MLP
    bool normalised;                    // the weights of a row's experts add up to 1
    // Empty: there is none. q_norm and k_norm are as wide as a head, or as all of them.
    std::vector<float> attn_norm, mlp_norm, attn_post_norm, mlp_post_norm;
    std::vector<float> qkv_bias, out_bias, q_norm, k_norm;
    // Of experts, gate_up and down hold one after the other.
    Matrix qkv, out, gate_up, down, router{};
    int64_t qkv_columns() const { return (heads + 2 * kv_heads) * dim; }
    void check() const;
};

struct KvPool {
    uint8_t* keys;
    uint8_t* values;
    int64_t layers, blocks, kv_heads, dim;
    KvKind kind;
    int64_t element() const { return kind == KvKind::f32 ? 4 : 2; }
    int64_t head_bytes() const { return KV_BLOCK * dim * element(); }
    // All layers of a block lie together, so that memory is touched block by block.
    int64_t block_bytes() const { return layers * kv_heads * head_bytes(); }
    int64_t offset(int64_t layer, int64_t block, int64_t head) const {
        return block * block_bytes() + (layer * kv_heads + head) * head_bytes();
    }
};

// Rotary tables: [rows][dim], cosines then sines.
struct Rope {
    const float* table;
    int64_t rows;
};

// A checked copy of a ragged batch.
struct Batch {
    std::vector<int32_t> positions, starts, tables;
    std::vector<int32_t> owner;      // request of each row
    int64_t table_width;
    int32_t largest_position = -1, largest_block = -1;

    Batch(const int32_t* positions, int64_t rows, const int32_t* starts, int64_t requests,
          const int32_t* tables, int64_t table_width);
    int64_t rows() const { return int64_t(positions.size()); }
    int64_t requests() const { return int64_t(starts.size()) - 1; }
    const int32_t* table(int64_t request) const { return tables.data() + request * table_width; }
};

// Scratch memory that only grows; starts on a cache line.
class Buffer {
public:
    Buffer() = default;
    ~Buffer() { release(); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // Room for `size` 32-bit values; what was there before is lost when it grows.
    float* floats(int64_t size) {
        if (size > size_) {
            release();
            data_ = ::operator new(size_t(size) * 4, LINE);
            size_ = size;
        }
        return static_cast<float*>(data_);
    }

private:
    static constexpr std::align_val_t LINE{64};
    void release() {
        if (data_) ::operator delete(data_, LINE);
        data_ = nullptr;
        size_ = 0;
    }
    void* data_ = nullptr;
    int64_t size_ = 0;
};

class Ops {
public:
    Ops(const Kernels* kernels, int threads) : kernels_(kernels), pool_(threads) {}

    const Kernels& kernels() const { return *kernels_; }
    int threads() const { return pool_.threads(); }

    void embed(const Matrix& table, const int32_t* tokens, int64_t rows, float scale, float* out);
    void attn_in(const Layer& layer, const float* x, const Batch& batch,
                 const std::vector<Rope>& ropes, const KvPool& kv, int64_t index, float* q);
    void attention(const Layer& layer, const float* q, const Batch& batch, const KvPool& kv,
                   int64_t index, float* out);
    void attn_out(const Layer& layer, const float* attended, float* x, int64_t rows);
    void mlp(const Layer& layer, float* x, int64_t rows);
    void logits(const float* norm, float eps, const Matrix& head, const float* x, int64_t x_rows,
                const int32_t* rows, int64_t count, const Output& to);
    void decode(const std::vector<const Layer*>& layers, int64_t first, float* x,
                const Batch& batch, const std::vector<Rope>& ropes, const KvPool& kv);

private:
    struct Product;
    struct Normed;
    struct AttnIn;
    struct Attention;
    struct Added;
    struct Mixture;

    void mixture(const Layer& layer, float* x, int64_t rows);
    Tiles tiles(Buffer& buffer, const Matrix& matrix, int64_t rows);

    const Kernels* kernels_;
    ThreadPool pool_;
    // Scratch memory and the pool serve one block at a time.
    std::recursive_mutex mutex_;
    Buffer words_, middle_, wide_, partial_, queries_, attended_, scores_;
};

}  // namespace wager
