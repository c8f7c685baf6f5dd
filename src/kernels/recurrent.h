// Ops of layers with a recurrent state, with a short causal convolution before it:
//   gated DeltaNet        Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with
//                         Delta Rule", https://arxiv.org/abs/2412.06464
//   Kimi Delta Attention  Kimi Team, "Kimi Linear: An Expressive, Efficient Attention
//                         Architecture", https://arxiv.org/abs/2510.26692
//   Mamba-2               Dao and Gu, "Transformers are SSMs", https://arxiv.org/abs/2405.21060
//   Lightning Attention   Qin et al., "Various Lengths, Constant Speed: Efficient Language Modeling
//                         with Lightning Attention", https://arxiv.org/abs/2405.17381 (kFixed)
//
// The rows of a sequence are computed one after another, in the order of positions. So the bits of
// a row and of a state depend only on the tokens before them: not on chunks, on the batch, on the
// number of threads, or on the pass that computed an earlier state. A GPU may compute the rows of a
// prompt in chunks of kDeltaChunk at absolute positions instead (StateSpan::chunked). Their sums
// have another order, so which rows are chunked must depend on the sequence only (engine/kv_cache).
// The columns of a state are independent of each other. A kernel keeps a block of them in the L1
// cache (on a GPU: in registers) for all rows of a chunk, so the time of a prompt grows linearly,
// and its states are read and written once for each chunk.
#pragma once

#include <cstdint>
#include <memory>

#include "core/parallel.h"
#include "kernels/state_rule.h"

namespace switchyard::kernels {

// The rows of one sequence in a pass, and the slots of its states. The pass reads slot `from` and
// does not change it. So a pass that was aborted can run again, and other sequences may read the
// same slot. No slot that a pass writes is another slot that it reads or writes.
//
// Spans in a device's memory are an array of this type. They are adjacent and ascending, and cover
// all rows. On GPUs, a span may also have no rows, after all others, or no slots (`from` and `to`
// −1): a padding row, whose output is computed from zeros and which leaves no state.
struct StateSpan {
  int32_t row_begin = 0, rows = 0;
  int32_t from = -1;  // slot of the state before these rows; −1: zeros, at the first position
  int32_t to = -1;    // slot of the state after them; another slot than `from`
  // The state after the first `rows` rows of the span is also written to `slot`. Ascending, and
  // fewer rows than the span has. Slot −1: no copy; such entries come last.
  struct Copy {
    int32_t rows = 0, slot = -1;
  };
  Copy copies[kMaxStateCopies] = {};
  // This number of leading rows, a multiple of kDeltaChunk, may be computed in chunks. The first of
  // them is at a position that is a multiple too, and so are the rows of copies among them. CPUs
  // compute all rows one by one. Not 0: the span has a slot `to`.
  int32_t chunked = 0;
};
constexpr int32_t kDeltaChunk = 64;
// Whether engines on Hopper GPUs compute prompts of kDelta in chunks. On an H200, a layer of
// Qwen3-Next-80B takes 0.79 instead of 1.93 ms for a prompt of 4096 rows.
constexpr bool kChunksPrompts = true;

// Causal convolution of each channel over the last `width` rows of its sequence, then SiLU:
//   y[t, c] = silu(bias[c] + Σ_j weight[j, c] · x[t − width + 1 + j, c])
// Channels are in groups of adjacent elements of x.
struct ShortConvParams {
  const float* x =
      nullptr;  // [m, groups, channels], element (t, g, c) at t · ldx + g · group_stride + c
  int64_t ldx = 0, group_stride = 0;
  int64_t groups = 1, channels = 0;
  int64_t width = 1;              // at most kMaxConvWidth
  const float* weight = nullptr;  // [width, groups · channels]
  const float* bias = nullptr;    // [groups · channels]; null: zeros
  // Slot s is at states + s · state_stride: the last width − 1 inputs [width − 1, groups ·
  // channels], the oldest first.
  float* states = nullptr;
  int64_t state_stride = 0;
  const StateSpan* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  int64_t m = 0;
  float* y = nullptr;  // [m, groups · channels], row stride ldy
  int64_t ldy = 0;
};
constexpr int64_t kMaxConvWidth = 16;

// Applies `rule` for each value head h with key head h / (value_heads / key_heads).
// Element i of head h of an operand begins at (h / n) · group_stride + (h % n) · width, where n is
// the number of its heads in a group: 1 for q and k, and value_heads / key_heads for v, a and b.
struct GatedDeltaParams {
  float *q = nullptr, *k = nullptr;  // row stride ld; normalised in place
  const float* v = nullptr;          // row stride ld
  int64_t ld = 0, q_stride = 0, k_stride = 0, v_stride = 0;
  // Row stride ld_gates. `b`: the delta rules only; `a`, `bias` and `skip` are null with kFixed.
  const float *a = nullptr, *b = nullptr;
  int64_t ld_gates = 0, a_stride = 0, b_stride = 0;
  const float *rate = nullptr,
              *bias = nullptr;  // [value_heads], [value_heads, decays()]; rates < 0
  StateRule rule = StateRule::kDelta;
  const float* skip = nullptr;  // [value_heads], with kMamba2
  float min_step = 0.0f;        // with kMamba2
  float bound = 0.0f;           // with kKeyDelta: the smallest logarithm of a decay; 0: no bound
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  float* states = nullptr;  // slot s at s · state_stride: S [value_heads, key_dim, value_dim]
  int64_t state_stride = 0;
  const StateSpan* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  int64_t m = 0;
  // Scratch of m · value_heads · (decays() + 1) floats, for decays and steps; at a multiple of 16
  // bytes on GPUs.
  float* gates = nullptr;
  float* out = nullptr;  // [m, value_heads, value_dim], row stride ldo
  int64_t ldo = 0;
  // Whether a span may have chunked rows, with kDelta only. If so, `chunk_scratch` has
  // kDeltaChunkFloats floats for each row and value head, at a multiple of 16 bytes.
  bool chunked = false;
  float* chunk_scratch = nullptr;

  // Decays of a value head, which are also its elements of `a` and `bias`.
  int64_t decays() const { return rule == StateRule::kKeyDelta ? key_dim : 1; }
};
constexpr int64_t kDeltaChunkFloats = 2 * kDeltaChunk + 2;
constexpr int64_t kMaxChunkKeyDim = 128;  // the largest key_dim whose rows may be chunked
// Whether engines let GPUs chunk the rows of prompts.
constexpr bool ChunksPrompts(StateRule rule, int64_t key_dim) {
  return kChunksPrompts && rule == StateRule::kDelta && key_dim <= kMaxChunkKeyDim;
}
constexpr float kDeltaNormEps = 1e-6f;  // added to the squared norms of q and k
// The largest key_dim of GPUs, which keep whole columns of a state in registers.
constexpr int64_t kMaxGpuKeyDim = 256;

// The gate of an output, by an activation of z:
//   kNone        x = norm(x)
//   kSilu        x = norm(x) · silu(z)
//   kSigmoid     x = norm(x) · sigmoid(z)
//   kSiluBefore  x = norm(x · silu(z))
enum class OutputGate : uint8_t { kNone, kSilu, kSigmoid, kSiluBefore };

// Norms and gates each head in place: norm(x[t, h]) = x[t, h] / sqrt(mean(x[t, h]²) + eps) ·
// weight.
struct GatedNormParams {
  float* x = nullptr;  // [m, heads, n], row stride ldx
  int64_t ldx = 0;
  const float* weight = nullptr;  // [n] of head h at h · weight_stride
  int64_t weight_stride = 0;      // 0: all heads have the same weight
  // z of head h at (h / group) · z_stride + (h % group) · n, row stride ldz. Null with kNone.
  const float* z = nullptr;
  int64_t ldz = 0, z_stride = 0, group = 1;
  OutputGate gate = OutputGate::kSilu;
  int64_t m = 0, heads = 0, n = 0;
  float eps = 1e-6f;
};

// Made by a device, for its thread. Memory and order of execution are as for Device; `sequences` of
// Params are in the device's memory too.
class RecurrentOps {
 public:
  virtual ~RecurrentOps() = default;
  // Whether this device can compute rows of kDelta in chunks. If not, it ignores
  // StateSpan::chunked.
  virtual bool ChunksRows(int64_t key_dim) const = 0;
  virtual void ShortConv(const ShortConvParams& p) = 0;
  virtual void GatedDelta(const GatedDeltaParams& p) = 0;
  virtual void GatedNorm(const GatedNormParams& p) = 0;
};
std::unique_ptr<RecurrentOps> MakeCpuRecurrentOps(ThreadPool& pool);

// Plain loops on one thread, sums in double.
namespace reference {
void ShortConv(const ShortConvParams& p);
void GatedDelta(const GatedDeltaParams& p);
void GatedNorm(const GatedNormParams& p);
}  // namespace reference

}  // namespace switchyard::kernels
