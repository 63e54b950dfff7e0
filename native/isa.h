// The seam between the threaded blocks (ops.cpp) and the kernels, which exist once per instruction
// set. Plain data only: the kernel translation units are compiled with different flags, so they must
// not share inline library code with the rest (the linker would keep one copy, for all).
#pragma once

#include <cstdint>

// Loops over the rows of a tile keep one register per row, so they must be unrolled whole.
#if defined(__clang__)
#define WAGER_UNROLL _Pragma("unroll")
#else
#define WAGER_UNROLL _Pragma("GCC unroll 32")
#endif

namespace wager {

constexpr int LANES = 16;       // output columns of a panel; positions of a KV block
constexpr int GROUP = 32;       // weights along K that share a scale
constexpr int CHUNK = 128;      // positions of one attention chunk
constexpr int KV_BLOCK = 16;    // positions of one KV block
constexpr int MAX_HEAD_DIM = 512;
constexpr int MAX_TILE_ROWS = 24;  // of any instruction set

// How a packed matrix is stored. Panels of 16 output columns, each contiguous:
//   f32   [K][16] floats
//   bf16  [K][16] upper halves of floats
//   int8  per pair of groups: 2 x 16 half-precision scales, then per group [8][16][4] bytes of
//         weight / scale + 128: a quad, four consecutive k of one column, fills a 32-bit lane.
//   int4  per pair of groups: 2 x 16 half-precision scales, 2 x 16 half-precision minima, then per
//         group [4][16][4] bytes of two quads each, (weight - minimum) / scale from 0 to 15: the
//         first quad is in the low halves of the bytes, the next one in the high halves.
// An odd last group has what precedes a pair, and its own bytes.
enum class WeightKind : int { f32 = 0, int8 = 1, int4 = 2, bf16 = 3 };
constexpr int WEIGHT_KINDS = 4;
constexpr bool in_groups(WeightKind kind) {
    return kind == WeightKind::int8 || kind == WeightKind::int4;
}
// The upper half of a float.
struct Bf16 { uint16_t bits; };
enum class KvKind : int { f32 = 0, f16 = 1 };

// Bytes of a pair of groups in a panel: of what precedes the weights, and of the weights of one group.
struct PairLayout {
    int64_t head, group;
    constexpr int64_t bytes() const { return head + 2 * group; }
};
constexpr PairLayout INT8_PAIR{64, GROUP * LANES};
constexpr PairLayout INT4_PAIR{128, GROUP * LANES / 2};

inline int64_t panel_bytes(int64_t k, WeightKind kind) {
    if (!in_groups(kind)) return k * LANES * (kind == WeightKind::f32 ? 4 : 2);
    const PairLayout& pair = kind == WeightKind::int8 ? INT8_PAIR : INT4_PAIR;
    const int64_t groups = k / GROUP;
    return groups / 2 * pair.bytes() + groups % 2 * (pair.head + pair.group);
}

// Rows of activations, split evenly into tiles of at most `max_rows` rows; K-major inside a tile, so
// that one pointer serves all rows. `words` 32-bit words per row.
struct Tiles {
    const uint32_t* data;
    int64_t rows;
    int64_t words;
    int64_t count;
    int64_t begin(int64_t tile) const { return tile * rows / count; }
};

// Where a product goes: cap(scale * (sum + bias)), written or added.
struct Output {
    float* out = nullptr;            // [rows][stride]
    int64_t stride = 0;
    bool add = false;
    const float* bias = nullptr;     // null: none
    float scale = 1.0f;
    float cap = 0.0f;                // 0: none; else cap * tanh(x / cap)
};

// One job of a product: `panels` of the matrix times `tiles` of the rows.
struct ProductJob {
    const uint8_t* weights;
    int64_t n, k;
    Tiles x;
    Output to;
    int64_t panel_begin, panel_end, tile_begin, tile_end;
    uint32_t* gated = nullptr;       // tiles of the next product, for a gated product
    int64_t gated_words = 0;         // 32-bit words per row of them
    bool gelu = false;               // what gates: GELU in its tanh form, else SiLU
};

// Attention of the rows [row_begin, row_end) of one request, for one kv head, over one chunk.
struct AttendJob {
    const float* q;              // row 0 of the request, first head of the group
    int64_t q_stride;            // floats between rows
    const int32_t* positions;    // of the request's rows
    int64_t row_begin, row_end;
    int64_t group;               // query heads per kv head
    int64_t dim;
    float scale;
    float cap;                   // of the scores; 0: none
    int64_t window;              // positions that a row sees; 0: all
    const uint8_t* keys;         // block 0 of this layer and kv head
    const uint8_t* values;
    int64_t block_bytes;         // between blocks
    const int32_t* table;
    int64_t chunk;
    float* partial;              // [pairs][partial_size(dim)]
};

// A partial result of attention: the weighted values in whole vectors, then maximum and sum.
inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }
inline int64_t partial_size(int64_t dim) { return padded(dim) + LANES; }

struct Philox {
    uint32_t key[2];
    uint32_t position, choice, purpose;
};

struct Top {
    float value;
    int32_t id;          // lowest id among equals; -1 where every value is -inf
    bool bad;            // NaN or +inf was met
};

// What multiplies by matrices of one kind.
struct ProductKernels {
    int max_rows;                    // of a tile
    int64_t (*words)(int64_t k);     // 32-bit words of one row's first k activations in a tile
    // n columns of a tile's rows, row-major with `stride`, into the tile.
    void (*pack)(const float* x, int64_t stride, int64_t rows, int64_t n, uint32_t* tile);
    void (*product)(const ProductJob& job);
    // act(first half of the columns) * second half, into the tiles `gated`; panel numbers are those
    // of the first half, even at the start of a job.
    void (*gated_product)(const ProductJob& job);
    // For benchmarks: returns the number of multiply-adds; `sink` holds two factors.
    int64_t (*probe)(int64_t rounds, float* sink);
};

struct Kernels {
    const char* name;
    ProductKernels products[WEIGHT_KINDS];
    const ProductKernels& of(WeightKind kind) const { return products[int(kind)]; }

    // 1 / sqrt(mean of x^2 + eps), and x * scale * weight.
    float (*rms_scale)(const float* x, float eps, int64_t n);
    void (*apply_norm)(const float* x, float scale, const float* weight, float* out, int64_t n);
    // x += y * factor.
    void (*add_scaled)(float* x, const float* y, float factor, int64_t n);
    // x[i], x[i + half] rotated by the angles whose cosines and sines are given.
    void (*rotate)(const float* x, const float* cosine, const float* sine, float* out, int64_t half);
    void (*to_half)(const float* x, uint16_t* out, int64_t n);
    void (*attend_f32)(const AttendJob& job);
    void (*attend_f16)(const AttendJob& job);
    // state := state merged with partial; in position order.
    void (*merge)(float* state, const float* partial, int64_t dim);
    void (*finish)(const float* state, float* out, int64_t dim);

    // Per block of 64 logits the maximum; returns the arg-max.
    Top (*block_max)(const float* logits, int64_t n, float* maxima);
    // Copies the values >= bound of one row to out (room for n + 16); returns how many.
    int64_t (*at_least)(const float* logits, int64_t n, float bound, float* out);
    // Sum of exp((l - top) * inverse) over the logits >= bound.
    double (*exp_sum)(const float* logits, int64_t n, float top, float inverse, float bound);
    void (*exp_values)(const float* logits, int64_t n, float top, float inverse, float* out);
    // Arg-max of (l - top) * inverse + Gumbel noise over the logits >= bound; `maxima` null: no
    // pruning.
    int32_t (*gumbel_max)(const float* logits, int64_t n, float top, int32_t top_id, float inverse,
                          float bound, const float* maxima, const Philox& noise);
    void (*philox)(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

    float (*probe_read)(const uint8_t* data, int64_t bytes);    // for benchmarks
};

const Kernels* scalar_kernels();
const Kernels* avx2_kernels();      // null where not compiled for this architecture
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

}  // namespace wager
