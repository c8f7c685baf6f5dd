// The numeric leaves of the decoder. One Params struct per op; the same names exist for every
// device.
//
// Activations are float32, row-major; `ld*` are leading dimensions in elements. Weights are in any
// WeightFormat and are read in place. No op allocates on its hot path beyond a thread's scratch
// kept between calls.
//
// Where a weight has an ActivationFormat, Linear, LinearGroup and GroupedMlp round the rows that it
// is multiplied with to it, each row by itself (quant/activations.h). kInt8Channel weights with
// kInt8Token rows are multiplied as int8 with exact sums, to the same bits on every instruction
// set. kBF16 weights with kBFloat16 rows are multiplied as such pairs where the instruction set has
// products of them, else as rounded float32.
//
// Order of additions: an output element is the same, bit for bit, whatever the number of rows in
// the call, the tile sizes or the number of threads. Every kernel sums along K in one order that
// depends only on K and the instruction set; attention visits keys in one order that depends only
// on the query's own sequence. Batches, chunks, ranks and placements therefore never change a
// result (ARCHITECTURE.md, "Placement invariance").
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

// Several linears that read the same x (q, k and v; gate and up): one call, so that threads share
// the whole.
void LinearGroup(std::span<const LinearParams> parts, ThreadPool& pool);

// The feed-forward of an expert or of a dense layer.
enum class Activation : uint8_t {
  kSwiGlu,  // silu(gate) · up
  // gpt-oss: g · sigmoid(alpha · g) · (u + 1) with g = min(gate, limit), u = clamp(up, ±limit)
  kSwiGluClamped,
};
struct ExpertWeights {
  // [I, H]; both with the same activation format and input scale, as they share the rounded rows.
  WeightView gate, up;
  WeightView down;                   // [H, I]
  const float* gate_bias = nullptr;  // [I] or null
  const float* up_bias = nullptr;    // [I] or null
  // [H] or null; with MoE-TP only one rank of the group carries it.
  const float* down_bias = nullptr;
};

// For every expert e and each of its rows r in [offsets[e], offsets[e + 1]):
//   out[r] = down( act( gate(x[row_ids[r]]), up(x[row_ids[r]]) ) )
// Contiguous grouped GEMM with the activation fused between the two products.
struct GroupedMlpParams {
  const float* x = nullptr;  // [rows, H]
  int64_t ldx = 0;
  const int32_t* row_ids = nullptr;  // [offsets[E]] row of x for each output row; null: r itself
  std::span<const ExpertWeights> experts;  // E
  std::span<const int32_t> offsets;        // [E + 1], ascending from 0
  Activation activation = Activation::kSwiGlu;
  float alpha = 1.702f, limit = 7.0f;  // of kSwiGluClamped
  float* scratch = nullptr;            // [offsets[E], I], the activated middle
  float* out = nullptr;                // [offsets[E], H]
  int64_t ldo = 0;
};
void GroupedMlp(const GroupedMlpParams& p, ThreadPool& pool);

// What else is to be done with each row that an op wrote, while it is in cache. Called once a row,
// from the pool's threads; CPUs only.
struct RowHook {
  virtual void Written(int64_t row, const float* y) const = 0;

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

// y[i] += x[i]
void AddInPlace(float* y, const float* x, int64_t count, ThreadPool& pool);

// Rounds every value to the nearest of `dtype` and back (bfloat16, float16; float32 does nothing).
void RoundTo(DType dtype, float* x, int64_t count, ThreadPool& pool);

// Rotary position embedding on heads x[t, h, 0..rotary_dim) in place, by a table of cosines and
// sines.
struct RopeParams {
  float* x = nullptr;  // [m, heads, head_dim], row stride ldx
  int64_t ldx = 0;
  int64_t m = 0, heads = 0, head_dim = 0;
  int64_t rotary_dim = 0;     // even, at most head_dim; the rest of each head is left alone
  int64_t rotary_offset = 0;  // first rotated element of a head (MLA: qk_nope_head_dim)
  bool interleaved = false;   // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  const int32_t* positions = nullptr;  // [m]
  // [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines.
  const float* cos_sin = nullptr;
};
void Rope(const RopeParams& p, ThreadPool& pool);

// One sequence's part of a batch: `rows` consecutive query rows from `row_begin`, which are the
// last rows of a sequence that then has kv_len keys; keys lie in pages[0 .. ceil(kv_len /
// page_size)).
struct SequenceSpan {
  int32_t row_begin = 0;
  int32_t rows = 0;
  int32_t kv_len = 0;
  const int32_t* pages = nullptr;
};

// Grouped-query attention over a paged cache. Slot of key j: pages[j / page_size] · page_size + j %
// page_size.
struct AttentionParams {
  const float* q = nullptr;  // [m, heads, head_dim], row stride ldq
  int64_t ldq = 0;
  const void* k_cache = nullptr;  // [slots, kv_heads, head_dim] of kv_dtype
  const void* v_cache = nullptr;  // likewise
  DType kv_dtype = DType::kF32;   // kF32, kBF16 or kF16
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t page_size = 1;
  float scale = 1.0f;
  int32_t window = 0;  // sliding window: key j is seen from position p when p - j < window; 0: all
  // [heads] logits that join the softmax's sum but carry no value; or null.
  const float* sinks = nullptr;
  // On CPUs q and the exponentials may be rounded to bfloat16, and are where kv_dtype is kBF16 and
  // the CPU multiplies pairs (MultipliesBFloat16). Of one call all rows, so no bit of a row depends
  // on the others.
  bool bfloat16_rows = false;
  std::span<const SequenceSpan> sequences;
  float* out = nullptr;  // [m, heads, head_dim], row stride ldo
  int64_t ldo = 0;
};
void Attention(const AttentionParams& p, ThreadPool& pool);

// Latent attention, absorbed: queries already multiplied into the latent space attend to the cached
// latents.
//   score(j) = scale · (q_latent · c_j[0..lora) + q_rope · c_j[lora..lora + rope))
//   out = Σ p_j · c_j[0..lora)
struct LatentAttentionParams {
  const float* q = nullptr;  // [m, heads, lora + rope], row stride ldq
  int64_t ldq = 0;
  const void* cache = nullptr;  // [slots, lora + rope] of kv_dtype
  DType kv_dtype = DType::kF32;
  int64_t heads = 0, lora = 0, rope = 0;
  int32_t page_size = 1;
  float scale = 1.0f;
  bool bfloat16_rows = false;  // as AttentionParams'
  std::span<const SequenceSpan> sequences;
  float* out = nullptr;  // [m, heads, lora], row stride ldo
  int64_t ldo = 0;
};
void LatentAttention(const LatentAttentionParams& p, ThreadPool& pool);

// Per-head products of MLA's absorption, W one view per head, whose activation format is left out
// of account, as the checkpoint's does not mean these inputs:
//   y[t, h, :] = x[t, h, :] · W_h     transposed = false: rows of the stored W_h are summed over
//   y[t, h, :] = x[t, h, :] · W_hᵀ    transposed = true: columns are
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

// Stores rows of float32 into cache slots: cache[slots[t]] = x[t], converted to `dtype`.
struct StoreKvParams {
  const float* x = nullptr;  // [m, n], row stride ldx
  int64_t ldx = 0;
  int64_t m = 0, n = 0;
  const int32_t* slots = nullptr;  // [m]
  void* cache = nullptr;           // [slots, n]
  DType dtype = DType::kF32;
};
void StoreKv(const StoreKvParams& p, ThreadPool& pool);

// out[t] = row ids[t] of W as float32; ids outside [first, first + W.n) give zeros
// (vocabulary-parallel).
struct EmbedParams {
  const int32_t* ids = nullptr;
  int64_t m = 0;
  WeightView w;  // [rows of this rank, H]
  int32_t first = 0;
  float* out = nullptr;  // [m, H]
};
void Embed(const EmbedParams& p, ThreadPool& pool);

// Instruction sets a kernel may be written in, weakest first; each has all of those before it.
// kAmxEmulated runs AMX's code where there are only AVX-512's instructions and has the others done
// by a handler of SIGILL (cpu/amx/tile_traps.h), for tests: never chosen by itself, and very slow.
enum class Isa : uint8_t { kReference, kAvx2, kAvx512, kAmx, kAmxEmulated };
// What SelectIsa chose, else the strongest one that this process can use.
Isa ActiveIsa();
// Whether this process may use AMX's tiles: the CPU has them for int8 and bfloat16, the operating
// system saves them, and Linux granted them to the process, which is asked for once.
bool HasAmx();
// Whether it multiplies weights in bfloat16 by rows in bfloat16, faster than by float32 ones:
// tiles, and AVX-512 where the CPU has AVX512_BF16.
bool MultipliesBFloat16(Isa isa);
// The one of this name (`--cpu-isa`), "auto" for the strongest; Error kInvalid when this process
// cannot use it or the name is unknown.
Isa IsaOf(std::string_view name);
// Forces IsaOf(name). Not thread-safe; call before ranks start.
void SelectIsa(std::string_view name);
std::string_view Name(Isa isa);

}  // namespace switchyard::kernels
