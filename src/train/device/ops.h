// Mathematical operations of training on a device, and the memory of that device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/parallel.h"
#include "core/range.h"
#include "kernels/device.h"
#include "moe/router/router.h"
#include "train/layers/attention.h"
#include "train/layers/pointwise.h"
#include "train/layers/router.h"

namespace switchyard::train {

// Weights [groups, n, k] in e4m3, with a float32 scale for each block of 128 × 128, and their
// transposes, which input gradients read. In device memory.
struct Fp8Weight {
  uint8_t* codes = nullptr;            // [groups, n, k]
  float* scales = nullptr;             // [groups, n / 128, k / 128]
  uint8_t* transposed = nullptr;       // [groups, k, n]
  float* transposed_scales = nullptr;  // [groups, k / 128, n / 128]
};
constexpr int64_t kFp8Block = 128;  // n and k are multiples of it

// A linear layer, or one of each of several groups (experts): y = x · Wᵀ with W [groups, n, k].
// Rows [offsets[g], offsets[g + 1]) belong to group g. Products skip rows after the last offset.
struct LinearShape {
  int64_t rows = 0, n = 0, k = 0;  // rows: of x and y
  int64_t groups = 1;
  const int32_t* offsets = nullptr;  // [groups + 1] in device memory; null: one group has all rows
  // Not null: FP8 products. They read these codes instead of the weight, and round x and dy to
  // e4m3. A scale belongs to 128 elements along the inner dimension of the product. For outputs and
  // input gradients these are a part of a row. For weight gradients they are 128 rows of a group,
  // in one column. Scales are powers of two (plain_fp8.h). Sums are float32.
  const Fp8Weight* fp8 = nullptr;
};

// Packed sequences in device memory.
struct DeviceRows {
  const int32_t* begins = nullptr;     // [sequences + 1], ascending from 0 to m
  const int32_t* positions = nullptr;  // [m], counted from 0 in each sequence
  const int32_t* lengths = nullptr;    // [sequences] rows of each sequence
  int64_t m = 0, sequences = 0;
  int64_t longest = 0;  // rows of the longest sequence
  // Rows of each of the ranks with different experts, in host memory; empty: this rank has all
  // experts.
  std::span<const int64_t> of_ranks;
};

// Routing of m tokens. SelectExperts reads logits and bias and writes ids; RouteWeights writes
// scores and weights.
struct DeviceRouting {
  int64_t m = 0;
  const float* logits = nullptr;  // [m, E]
  const float* bias = nullptr;    // [E] selection bias, or null
  float* scores = nullptr;        // [m, E] as RouterState::scores
  int32_t* ids = nullptr;         // [m, k] in the order of SelectExperts
  float* weights = nullptr;       // [m, k], including routed_scaling_factor
};

// The balance losses of a layer. The arrays are filled by Balance, except `counts`.
struct DeviceBalance {
  BalanceLosses weights;
  double step_tokens = 1;         // StepSize::tokens
  const float* counts = nullptr;  // [E + 1] of CountTokens over all ranks; read for `batch`
  float* batch = nullptr;         // [E] factors of the probabilities in `batch`
  float* sequence = nullptr;      // [sequences, E] the same for `sequence`
};

// Gate and up of a feed-forward layer: halves of rows [m, 2 n].
struct GateUpShape {
  int64_t m = 0, n = 0;
  // Only the first *valid_rows rows are used, a number in device memory; null: all.
  const int32_t* valid_rows = nullptr;
};

// Widths of latent attention: the own part of a head's key, the part that all heads share, and the
// value of a head; the latent before them.
struct LatentKeyShape {
  int64_t m = 0, heads = 0;
  int64_t nope = 0, rope = 0, value = 0, lora = 0;
};

// The slots t · k + j of m tokens, in the order of their experts, then of the slots.
struct DeviceSlots {
  int64_t m = 0, k = 0;
  int32_t* place = nullptr;    // [m · k] index of a slot in this order, or -1 without an expert
  int32_t* offsets = nullptr;  // [E + 1] first row of each expert
};

// One step of AdamW on `count` elements, with the order of operations of optimizer/adamw.cc.
struct AdamWUpdate {
  float keep = 1;            // 1 - rate · decay
  float gradient_scale = 1;  // of clipping
  float beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  float step = 0;     // rate / (1 - beta1^t)
  float unbias2 = 1;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
};

// The operations that layers of training call, on one device. C is the dtype of the operands of
// matrix products: BF16 (core/dtype.h) or float. Sums (hidden states between layers, gradients of
// weights, routers, losses) are float32. Accumulation within a product is float32.
//
// All pointers are in the memory of `device`, except where noted. A GPU runs the operations in
// order and returns before they have run; operands must stay valid until then. DeviceMemory takes
// care of that. One object per rank, used by the rank's thread only.
//
// Arguments have the meaning of the functions of the same name in train/layers, which are the
// reference of every kernel.
template <typename C>
class TrainOps {
 public:
  virtual ~TrainOps() = default;
  virtual kernels::Device& device() = 0;

  virtual void Zero(void* to, int64_t bytes) = 0;
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;  // both in device memory
  virtual void Add(const float* x, float* y, int64_t count) = 0;     // y += x
  virtual void Round(const float* x, C* y, int64_t count) = 0;       // y = x, rounded to C
  // Copies of m rows of n elements, whose rows are `row` elements apart in an array of columns.
  virtual void StoreColumns(int64_t m, int64_t n, const C* from, C* columns, int64_t row) = 0;
  virtual void LoadColumns(int64_t m, int64_t n, const C* columns, int64_t row, float* to) = 0;

  // Linear layers. The versions with `Sum` have float32 outputs, to which they add if `accumulate`.
  virtual void Project(const LinearShape& s, const C* x, const C* w, C* y) = 0;
  virtual void ProjectSum(const LinearShape& s, const C* x, const C* w, float* y,
                          bool accumulate) = 0;
  virtual void InputGradient(const LinearShape& s, const C* dy, const C* w, C* dx) = 0;
  virtual void InputGradientSum(const LinearShape& s, const C* dy, const C* w, float* dx,
                                bool accumulate) = 0;
  virtual void WeightGradient(const LinearShape& s, const C* dy, const C* x, float* dw) = 0;  // +=
  // Fills s.fp8 from w [groups, n, k]. Reads neither s.rows nor s.offsets.
  virtual void QuantizeWeight(const LinearShape& s, const C* w) = 0;
  // Rows x [m, width] as e4m3 codes [m, width], with scales [m, width / 128] as in FP8 products.
  // Decoded rows are exact in bfloat16, and FP8 products do not round them again.
  virtual void QuantizeRows(const C* x, int64_t m, int64_t width, uint8_t* codes,
                            float* scales) = 0;
  virtual void DecodeRows(const uint8_t* codes, const float* scales, int64_t m, int64_t width,
                          C* x) = 0;

  // Products of routers, whose logits and weights are float32. x [m, k], w [n, k].
  virtual void RouterProject(int64_t m, int64_t n, int64_t k, const C* x, const float* w,
                             float* logits) = 0;
  // dx [m, k] += dlogits · W; dw += dlogitsᵀ · x.
  virtual void RouterProductGradients(int64_t m, int64_t n, int64_t k, const float* dlogits,
                                      const C* x, const float* w, float* dx, float* dw) = 0;

  // ids [m]. The gradient reads ids in host memory, and adds to dtable in ascending order of rows.
  virtual void Embed(const int32_t* ids, int64_t m, const float* table, int64_t width,
                     float* out) = 0;
  virtual void EmbedGradient(std::span<const int32_t> host_ids, const float* dout, int64_t width,
                             float* dtable) = 0;
  // out[i] = x[ids[i]]
  virtual void SelectRows(const C* x, const int32_t* ids, int64_t count, int64_t width, C* out) = 0;

  // Norms of hidden states. dx += if `accumulate`; dgain +=.
  virtual void RmsNorm(const NormShape<float>& s, const float* x, const float* gain, C* y) = 0;
  virtual void RmsNormGradient(const NormShape<float>& s, const float* x, const float* gain,
                               const float* dy, float* dx, bool accumulate, float* dgain) = 0;
  // Norms within attention. dx is overwritten and may not alias dy; dgain +=.
  virtual void HeadNorm(const NormShape<float>& s, const C* x, const float* gain, C* y) = 0;
  virtual void HeadNormGradient(const NormShape<float>& s, const C* x, const float* gain,
                                const C* dy, C* dx, float* dgain) = 0;
  virtual void Rope(const RopeShape<float>& s, C* x, bool backward) = 0;

  // log_sums [heads, m]. `products` of the shape is not read.
  virtual void Attention(const AttentionShape<float>& s, const DeviceRows& rows,
                         HeadRows<const C> q, HeadRows<const C> k, HeadRows<const C> v,
                         HeadRows<C> out, float* log_sums) = 0;
  virtual void AttentionGradient(const AttentionShape<float>& s, const DeviceRows& rows,
                                 HeadRows<const C> q, HeadRows<const C> k, HeadRows<const C> v,
                                 HeadRows<const C> out, const float* log_sums,
                                 HeadRows<const C> dout, HeadRows<C> dq, HeadRows<C> dk,
                                 HeadRows<C> dv) = 0;

  // out [m, n] = silu(gate) · up. The gradient of both replaces gate_up.
  virtual void SwiGlu(const GateUpShape& s, const C* gate_up, C* out) = 0;
  virtual void SwiGluGradient(const GateUpShape& s, const C* dout, C* gate_up) = 0;

  // As SelectExperts of moe/router/router.h: ties go to the lower id.
  virtual void SelectExperts(const RouterConfig& config, const DeviceRouting& routing) = 0;
  // Replaces the ids of tokens that have given experts [m, k], not all −1 (RouterState::given).
  // Adds their number to counts[0], and to counts[1] that of those whose own selection was the same
  // set.
  virtual void GiveExperts(const RouterConfig& config, const DeviceRouting& routing,
                           const int32_t* given, int32_t* counts) = 0;
  virtual void RouteWeights(const RouterConfig& config, const DeviceRouting& routing) = 0;
  // counts [E + 1]: the number of slots of each expert, then that of tokens.
  virtual void CountTokens(const RouterConfig& config, const DeviceRouting& routing,
                           float* counts) = 0;
  // Row t of `losses` [m] gets the balance losses of token t, as Router::AddBalance sums them.
  // Fills the arrays of `balance` that its weights need.
  virtual void Balance(const RouterConfig& config, const DeviceRows& rows,
                       const DeviceRouting& routing, const DeviceBalance& balance,
                       float* losses) = 0;
  // dlogits [m, E] is overwritten. balance: null if no loss has a weight.
  virtual void RouteGradient(const RouterConfig& config, const DeviceRows& rows,
                             const DeviceRouting& routing, const DeviceBalance* balance,
                             const float* dweights, float* dlogits) = 0;

  // Renumbers `count` ids: those of `experts` from 0, and all others become −1.
  virtual void SelectLocal(Range experts, int32_t* ids, int64_t count) = 0;
  // Fills `slots` from ids [m, k], and adds the number of slots of each expert to loads [E].
  virtual void SortSlots(const RouterConfig& config, const int32_t* ids, const DeviceSlots& slots,
                         int32_t* loads) = 0;
  // out[place[t, j]] = x[t]; x [m, width], out [m · k, width].
  virtual void GatherRows(const RouterConfig& config, const DeviceSlots& s, const C* x,
                          int64_t width, C* out) = 0;
  // y[t] (+)= Σ_j weights[t, j] · results[place[t, j]], in slot order.
  virtual void Combine(const RouterConfig& config, const DeviceSlots& s, const C* results,
                       const float* weights, int64_t width, bool accumulate, float* y) = 0;
  // dresults[place[t, j]] = weights[t, j] · dy[t], dweights[t, j] = dy[t] · results[place[t, j]];
  // dweights of slots without an expert are 0. dresults may be results.
  virtual void CombineGradient(const RouterConfig& config, const DeviceSlots& s, const C* dy,
                               const C* results, const float* weights, int64_t width, C* dresults,
                               float* dweights) = 0;
  // dx[t] (+)= Σ_j drows[place[t, j]], in slot order; the gradient of GatherRows, and with k = 1
  // that of SelectRows. Reads no other array of `s` than `place`.
  virtual void ScatterRows(const DeviceSlots& s, const float* drows, int64_t width, bool accumulate,
                           float* dx) = 0;

  // Keys of latent attention before the rotation of the shared part: k [m, heads, nope + rope] from
  // kv [m, heads, nope + value] and latent [m, lora + rope].
  virtual void JoinKeys(const LatentKeyShape& s, const C* kv, const C* latent, C* k) = 0;
  // Writes the own parts to dkv, whose value parts stay, and the shared parts, summed over heads,
  // to dlatent from column lora on.
  virtual void SplitKeys(const LatentKeyShape& s, const C* dk, C* dkv, C* dlatent) = 0;

  // losses[i] = -log softmax(logits[i])[targets[i]], logits [rows, vocab]. If dlogits is not null,
  // dlogits = scale · (softmax - one-hot), rounded to C.
  virtual void CrossEntropy(const float* logits, const int32_t* targets, int64_t rows,
                            int64_t vocab, float scale, C* dlogits, float* losses) = 0;

  // Updates value, moments and `copy` (the value rounded to C), and sets the gradient to zero.
  virtual void AdamW(const AdamWUpdate& update, int64_t count, float* value, float* gradient,
                     float* first, float* second, C* copy) = 0;
  // sums[b] = Σ x² over block b of Shards::kBlock elements.
  virtual void SquareSums(const float* x, int64_t count, double* sums) = 0;
};

// Plain loops over rows on the threads of `pool`, in the order of the formulas. The reference of
// GPU kernels, and what tests on CPUs run a DeviceModel with. C is float or BF16.
template <typename C>
std::unique_ptr<TrainOps<C>> MakePlainOps(ThreadPool& pool);

}  // namespace switchyard::train
