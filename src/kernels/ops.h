// Numeric ops of the decoder. One Params struct per op; every device has the same ops.
//
// Activations are float32, row-major; `ld*` are leading dimensions in elements. Weights may have
// any WeightFormat and are read in place. Ops allocate nothing on the hot path, except per-thread
// scratch that is kept between calls.
//
// If a weight has an ActivationFormat, Linear, LinearGroup and GroupedMlp round its input rows to
// it, each row independently (quant/activations.h). kInt8Channel weights with kInt8Token rows
// multiply as int8 with exact int32 sums, bit-identical on every instruction set. 4-bit weights
// with kInt8Group or kInt8Token rows multiply as integers if HasFourBitProducts: the sum of the
// columns that share a scale is exact, and bits are the same on every instruction set. Groups that
// do not divide into 32, 64 or 128 columns multiply as float32. kBF16 and FP8
// weights with kBFloat16 rows use bfloat16 products where the instruction set has them, otherwise
// float32 products of the rounded rows. Views of kFp8Block that begin within a block of columns use
// float32 products, too.
//
// Reduction order: each output element is bit-identical for any number of rows in the call, any
// tile sizes and any number of threads. Every kernel sums along K in one order, which depends only
// on K, the formats and the device (CPUs: the instruction set). Attention visits keys in one order,
// which depends only on the query's own sequence. Batches, chunks and placements therefore never
// change a result. For numbers of ranks, ARCHITECTURE.md ("Placement invariance") lists the cases
// in which this holds too.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/parallel.h"
#include "quant/weight_view.h"

namespace switchyard::kernels {

// y[m, n] = x[m, k] · W[n, k]ᵀ + bias[n]
struct LinearParams {
  const float* x = nullptr;
  int64_t ldx = 0;
  WeightView w;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t m = 0;
  bool accumulate = false;  // add to y instead of writing it
};
void Linear(const LinearParams& p, ThreadPool& pool);

// Several linears with the same input x (q, k and v; gate and up), in one call so that threads
// balance over all of them.
void LinearGroup(std::span<const LinearParams> parts, ThreadPool& pool);

// Feed-forward network of an expert or of a dense layer.
enum class Activation : uint8_t {
  kSwiGlu,  // silu(gate) · up
  // gpt-oss: g · sigmoid(alpha · g) · (u + 1) with g = min(gate, limit), u = clamp(up, ±limit)
  kSwiGluClamped,
  // DeepSeek-V4: silu(g) · u with g = min(gate, limit), u = clamp(up, ±limit).
  kSwiGluLimited,
  // relu(up)². There is no gate: ExpertWeights::gate is the same matrix as `up`, and only one
  // product is computed.
  kRelu2,
};
struct ExpertWeights {
  // [I, H]; same activation format and input scale, because they share the rounded rows.
  WeightView gate, up;
  WeightView down;                   // [H, I]
  const float* gate_bias = nullptr;  // [I] or null
  const float* up_bias = nullptr;    // [I] or null
  // [H] or null; with MoE-TP only one rank of the group adds it.
  const float* down_bias = nullptr;
};

// For every expert e and each of its rows r in [offsets[e], offsets[e + 1]):
//   out[r] = down( act( gate(x[row_ids[r]]), up(x[row_ids[r]]) ) )
// Contiguous grouped GEMM with the activation fused between the two products.
struct GroupedMlpParams {
  const float* x = nullptr;  // [rows, H]
  int64_t ldx = 0;
  const int32_t* row_ids = nullptr;        // [offsets[E]] row of x per output row; null: r itself
  std::span<const ExpertWeights> experts;  // E
  std::span<const int32_t> offsets;        // [E + 1], ascending from 0
  Activation activation = Activation::kSwiGlu;
  float alpha = 1.702f, limit = 7.0f;  // parameters of kSwiGluClamped, kSwiGluLimited
  float* scratch = nullptr;            // [offsets[E], I], activated intermediate rows
  float* out = nullptr;                // [offsets[E], H]
  int64_t ldo = 0;
};
void GroupedMlp(const GroupedMlpParams& p, ThreadPool& pool);
// Compute the two products of GroupedMlp separately, with the same bits. GroupedGateUp writes
// `scratch` and ignores `out`. GroupedDown reads `scratch` and ignores x; it may overwrite
// `scratch` with rounded values, so each row must be computed once only.
void GroupedGateUp(const GroupedMlpParams& p, ThreadPool& pool);
void GroupedDown(const GroupedMlpParams& p, ThreadPool& pool);

// Per-row callback of an op, run while the output row is in cache. Called once per row from pool
// threads. CPUs only.
struct RowHook {
  virtual void OnRowWritten(int64_t row, const float* y) const = 0;

 protected:
  ~RowHook() = default;
};

// y[t] = x[t] / sqrt(mean(x[t]²) + eps) · weight
struct RmsNormParams {
  const float* x = nullptr;  // [m, n]; may equal y
  int64_t ldx = 0;
  const float* weight = nullptr;  // [n]
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t m = 0, n = 0;
  float eps = 1e-6f;
  const RowHook* hook = nullptr;
};
void RmsNorm(const RmsNormParams& p, ThreadPool& pool);

// y[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) · weight + bias
struct LayerNormParams {
  const float* x = nullptr;  // [m, n]; may equal y
  int64_t ldx = 0;
  const float* weight = nullptr;  // [n]
  const float* bias = nullptr;    // [n]
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t m = 0, n = 0;
  float eps = 1e-5f;
  const RowHook* hook = nullptr;
};
void LayerNorm(const LayerNormParams& p, ThreadPool& pool);

// y[i] += x[i]
void AddInPlace(float* y, const float* x, int64_t count, ThreadPool& pool);

// Rounds every value to `dtype` and back (bfloat16, float16; a no-op for float32).
void RoundTo(DType dtype, float* x, int64_t count, ThreadPool& pool);

// Rotary position embedding on heads x[t, h, 0..rotary_dim), in place, from a table of cosines and
// sines.
struct RopeParams {
  float* x = nullptr;  // [m, heads, head_dim], row stride ldx
  int64_t ldx = 0;
  int64_t m = 0, heads = 0, head_dim = 0;
  int64_t rotary_dim = 0;              // even, at most head_dim; the rest of each head is unchanged
  int64_t rotary_offset = 0;           // first rotated element of a head (MLA: qk_nope_head_dim)
  bool interleaved = false;            // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  const int32_t* positions = nullptr;  // [m]
  // [positions, rotary_dim]: rotary_dim / 2 cosines, then rotary_dim / 2 sines.
  const float* cos_sin = nullptr;
};
void Rope(const RopeParams& p, ThreadPool& pool);

// One sequence of a batch: `rows` consecutive query rows starting at `row_begin`. They are the last
// rows of the sequence. Its kv_len keys include the keys of these rows. Keys are stored in pages[0
// .. ceil(kv_len / page_size)).
//
// With `branch`, the rows belong to a branch of a tree that continues the sequence: only the keys
// before position branch_begin are in the pages. The slot of a later key j is branch[j −
// branch_begin]. So several branches share the pages, and every key of a row has the index of its
// position, as without a tree. On GPUs, CudaDeviceOptions::max_branch limits the length of
// `branch`, and sequences that follow each other with the same `pages` share a page table.
struct SequenceSpan {
  int32_t row_begin = 0;
  int32_t rows = 0;
  int32_t kv_len = 0;
  const int32_t* pages = nullptr;
  const int32_t* branch = nullptr;  // [kv_len − branch_begin]; null: all keys are in the pages
  int32_t branch_begin = 0;

  // The cache slot of key j. Always inline: an out-of-line copy could be compiled for another
  // instruction set.
  [[gnu::always_inline]] int64_t SlotOf(int64_t j, int64_t page_size) const {
    if (branch != nullptr && j >= branch_begin) return branch[j - branch_begin];
    return int64_t{pages[j / page_size]} * page_size + j % page_size;
  }
};

// Grouped-query attention over a paged cache. Slot of key j: SequenceSpan::SlotOf(j, page_size).
struct AttentionParams {
  const float* q = nullptr;  // [m, heads, head_dim], row stride ldq
  int64_t ldq = 0;
  // Whether q has the format that NormRopeStoreKv writes with its flag bf16_queries: each head is
  // bfloat16 and occupies the first half of its head_dim floats. Only if
  // FusedOps::AttentionToBFloat16 is true.
  bool bf16_queries = false;
  const void* k_cache = nullptr;  // [slots, kv_heads, head_dim] of kv_dtype
  const void* v_cache = nullptr;  // [slots, kv_heads, value width] of kv_dtype
  DType kv_dtype = DType::kF32;   // a cache dtype (kernels/cache_rows.h)
  // With kF8E4M3: [kv_heads] the scale of each head's keys, and of its values; null: 1. In the
  // memory of the device.
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t v_dim = 0;         // width of a value and of a head's output; 0: head_dim
  float value_scale = 1.0f;  // factor of all values
  int32_t page_size = 1;
  float scale = 1.0f;
  int32_t window = 0;  // sliding window: position p attends to key j if p - j < window; 0: all
  // Position p attends to key j if both are in the same chunk of this many positions,
  // floor(p / chunk) = floor(j / chunk). 0: no chunks. Not together with a window.
  int32_t chunk = 0;
  // [heads] attention sinks: logits that join the softmax sum but carry no value; or null.
  const float* sinks = nullptr;
  // Allows CPUs to round q and the exponentials to bfloat16. They do so if kv_dtype is kBF16 and
  // the CPU has bfloat16 products (HasBFloat16Products). This applies to all rows of a call, so no
  // row depends on the others.
  bool bfloat16_rows = false;
  std::span<const SequenceSpan> sequences;
  float* out = nullptr;  // [m, heads, value width], row stride ldo
  int64_t ldo = 0;
  // Instead of `out`: the same elements rounded to bfloat16, if FusedOps::AttentionToBFloat16 is
  // true.
  void* bf16_out = nullptr;

  int64_t value_width() const { return v_dim > 0 ? v_dim : head_dim; }
};
void Attention(const AttentionParams& p, ThreadPool& pool);

// Multi-head latent attention with absorbed projections: queries are already in the latent space
// and attend to the cached latents.
//   score(j) = scale · (q_latent · c_j[0..lora) + q_rope · c_j[lora..lora + rope))
//   out = Σ p_j · c_j[0..lora)
struct LatentAttentionParams {
  const float* q = nullptr;  // [m, heads, lora + rope], row stride ldq
  int64_t ldq = 0;
  const void* cache = nullptr;  // [slots, lora + rope] of kv_dtype
  DType kv_dtype = DType::kF32;
  const float* cache_scale = nullptr;  // [1] with kF8E4M3: the scale of all rows; null: 1
  int64_t heads = 0, lora = 0, rope = 0;
  int32_t page_size = 1;
  float scale = 1.0f;
  bool bfloat16_rows = false;  // see AttentionParams
  // With `selected`, the result of SelectKeys for the same sequences on the same device: rows with
  // more than topk keys attend only to the keys in their slots. Bits are those of attention over a
  // sequence of only these keys.
  const int32_t* selected = nullptr;  // [m, topk] or null
  int64_t topk = 0;
  std::span<const SequenceSpan> sequences;
  float* out = nullptr;  // [m, heads, lora], row stride ldo
  int64_t ldo = 0;
};
void LatentAttention(const LatentAttentionParams& p, ThreadPool& pool);

// Selection of keys by the lightning indexer of DeepSeek Sparse Attention (DeepSeek-V3.2-Exp,
// 2025). An index key k_j is cached for each position.
//   score(j) = Σ_h weight_h · max(0, q_h · k_j)
// A row with more than topk keys selects the topk keys with the highest scores; of equal scores,
// those at lower positions. NaN is the lowest score.
struct SelectKeysParams {
  const float* q = nullptr;  // [m, heads, head_dim], row stride ldq
  int64_t ldq = 0;
  const float* weights = nullptr;  // [m, heads]
  const void* cache = nullptr;     // [slots, head_dim] of kv_dtype
  DType kv_dtype = DType::kF32;
  int64_t heads = 0, head_dim = 0, topk = 0;
  int32_t page_size = 1;
  std::span<const SequenceSpan> sequences;
  // [m, topk] the slots of the selected keys, ascending by position. In rows with at most topk
  // keys, CPUs write nothing, and GPUs the slots of all keys.
  int32_t* selected = nullptr;
};
void SelectKeys(const SelectKeysParams& p, ThreadPool& pool);

// Selected keys that rows take from rows of an earlier pass, their parents, instead of selecting
// their own (GLM-5.2's drafts of one step). A row has the keys of its parent and one more, its own.
// If its parent had more than topk keys, the row takes the slots that the parent has selected. If
// its parent had topk keys, it takes these. Otherwise it attends to all its keys.
struct InheritKeysParams {
  const int32_t* parents = nullptr;  // [m] rows of `selected`
  int64_t topk = 0;
  int32_t page_size = 1;
  std::span<const SequenceSpan> sequences;
  // Before: the keys of the parents [., topk], as SelectKeys or InheritKeys has written them.
  // After: those of the rows [m, topk], as SelectKeys writes them.
  int32_t* selected = nullptr;
};
void InheritKeys(const InheritKeysParams& p, ThreadPool& pool);

// Per-head products of MLA weight absorption, and products of output groups in compressed
// attention; W has one view per head or group. The weight's activation format is ignored, because
// the checkpoint does not define it for these inputs:
//   y[t, h, :] = x[t, h, :] · W_h     transposed = false: sums over the rows of the stored W_h
//   y[t, h, :] = x[t, h, :] · W_hᵀ    transposed = true: sums over its columns
struct HeadLinearParams {
  // [m, heads, *], element (t, h, i) at x[t * ldx + h * head_stride_x + i].
  const float* x = nullptr;
  int64_t ldx = 0, head_stride_x = 0;
  std::span<const WeightView> w;  // [heads]
  bool transposed = true;
  float* y = nullptr;
  int64_t ldy = 0, head_stride_y = 0;
  int64_t m = 0;
};
void HeadLinear(const HeadLinearParams& p, ThreadPool& pool);

// Scatters float32 rows into cache slots: cache[slots[t]] = x[t], converted to `dtype`.
struct StoreKvParams {
  const float* x = nullptr;  // [m, n], row stride ldx
  int64_t ldx = 0;
  int64_t m = 0, n = 0;
  const int32_t* slots = nullptr;  // [m]
  void* cache = nullptr;           // [slots, n]
  DType dtype = DType::kF32;
  // With kF8E4M3: [heads] the scale of each n / heads elements of a row; null: 1. In the memory of
  // the device.
  const float* scales = nullptr;
  int64_t heads = 1;
};
void StoreKv(const StoreKvParams& p, ThreadPool& pool);

// Embedding lookup: out[t] = scale · row ids[t] of W, in float32. Ids outside [first, first + W.n)
// give zeros (vocabulary-parallel).
struct EmbedParams {
  const int32_t* ids = nullptr;
  int64_t m = 0;
  WeightView w;  // [rows of this rank, H]
  int32_t first = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [m, H]
};
void Embed(const EmbedParams& p, ThreadPool& pool);

// Instruction sets of the kernels, weakest first; each includes those before it. kAmxEmulated runs
// the AMX code on AVX-512 CPUs and emulates tile instructions in a SIGILL handler
// (cpu/amx/emulated_tiles.h). For tests: never selected automatically, and very slow.
enum class Isa : uint8_t { kReference, kAvx2, kAvx512, kAmx, kAmxEmulated };
// The instruction set of SelectIsa; by default the strongest that this process can use.
Isa ActiveIsa();
// Whether this process may use AMX tiles. The CPU must support them for int8 and bfloat16, the
// operating system must save them, and Linux must grant permission, which is requested once.
bool HasAmx();
// Whether `isa` has bfloat16 products that are faster than float32 ones: AMX tiles, or AVX-512 on
// CPUs with AVX512_BF16.
bool HasBFloat16Products(Isa isa);
// Whether `isa` has products of FP8 weights and bfloat16 rows that are faster than float32 ones: on
// AMD's CPUs with AVX512_BF16 and AVX512_VBMI. On Intel's Sapphire Rapids float32 products were
// faster.
bool HasFp8Products(Isa isa);
// Whether `isa` multiplies 4-bit weights with kInt8Group rows as integers. The reference multiplies
// the rounded rows as float32.
bool HasFourBitProducts(Isa isa);
// Parses the value of `--cpu-isa`; "auto" is the strongest instruction set that this process can
// use. Throws Error kInvalid if the name is unknown or this process cannot use it.
Isa IsaOf(std::string_view name);
// Activates IsaOf(name). Not thread-safe; call before ranks start.
void SelectIsa(std::string_view name);
std::string_view Name(Isa isa);

// Row gather: y[i, 0..n) = x[row(i), 0..n), row strides `ldx` and `ldy` floats; row(i) = rows[i],
// or i if `rows` is null.
struct CopyRowsParams {
  const float* x = nullptr;
  int64_t ldx = 0;
  const int32_t* rows = nullptr;  // [m] or null
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t m = 0, n = 0;
};

// Copies rows within each array, move by move: the row `to` becomes equal to the row `from`. No
// move reads a row that an earlier move has written, so reads may come before writes of earlier
// moves.
struct RowMove {
  int32_t from = 0, to = 0;
};
struct RowArray {
  void* data = nullptr;  // [rows, row_bytes]
  int64_t row_bytes = 0;
};
struct MoveRowsParams {
  std::span<const RowArray> arrays;
  std::span<const RowMove> moves;
};

// squares[t] = Σ_i x[t, i]²
struct SumSquaresParams {
  const float* x = nullptr;  // [m, n]
  int64_t m = 0, n = 0;
  float* squares = nullptr;  // [m]
};

// x[t, i] = x[t, i] / sqrt(squares[t] / total + eps) · weight[i]: RMS norm with the mean over
// `total` elements, of which this rank holds n.
struct ScaleBySquaresParams {
  float* x = nullptr;  // [m, n]
  int64_t m = 0, n = 0;
  const float* squares = nullptr;  // [m]
  int64_t total = 0;
  float eps = 1e-6f;
  const float* weight = nullptr;  // [n]
};

// Times of work that a device runs asynchronously.

}  // namespace switchyard::kernels
