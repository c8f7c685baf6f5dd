// Problem: router weights and their gradient, balance losses, order of slots, rows of experts.
// Tiling: one warp per token for weights and losses, one block per token for rows of experts, and
// one block for each 4096 slots to count them.
// Pipeline: none. Measured on one H200, of the rate of reads and writes: gather 78 %, combine 79 %,
// its gradient 61 %, gradient of the router 18 %.
#include <algorithm>

#include "train/cuda/launch.cuh"
#include "train/cuda/refuse.h"
#include "train/cuda/routing.h"

namespace switchyard::train::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxExperts = 512, kMaxTopK = 16;
// Avoids 0 / 0 if all sigmoids underflow, as in moe/router/router.cc.
constexpr float kTiny = 1e-20f;

// log Σ e^x[i], in all lanes.
__device__ float LogSum(const float* x, int n, int lane) {
  float largest = -INFINITY, sum = 0;
  for (int i = lane; i < n; i += kWarp) largest = fmaxf(largest, x[i]);
  largest = WarpMax(largest);
  for (int i = lane; i < n; i += kWarp) sum += expf(x[i] - largest);
  return largest + logf(WarpSum(sum));
}

__device__ __forceinline__ float ScoreOf(Scoring scoring, float logit, float log_sum) {
  return scoring == Scoring::kSigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - log_sum);
}

// Lane j computes the weight of slot j.
__global__ void RouterWeightsKernel(RouterShape shape, const float* all_logits, const int32_t* ids,
                                    float* scores, float* weights) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp, experts = shape.experts;
  if (t >= shape.m) return;
  const float* logits = all_logits + t * experts;
  const float log_sum = shape.scoring == Scoring::kSigmoid ? 0.0f : LogSum(logits, experts, lane);
  for (int e = lane; e < experts; e += kWarp)
    scores[t * experts + e] = ScoreOf(shape.scoring, logits[e], log_sum);
  const int id = lane < shape.top_k ? ids[t * shape.top_k + lane] : -1;
  float weight = 0;
  if (shape.scoring == Scoring::kTopKSoftmax) {
    const float logit = id < 0 ? -INFINITY : logits[id];
    const float largest = WarpMax(logit);
    weight = id < 0 ? 0.0f : expf(logit - largest);
    const float sum = WarpSum(weight);
    if (sum > 0) weight /= sum;
  } else if (id >= 0) {
    weight = ScoreOf(shape.scoring, logits[id], log_sum);
  }
  if (shape.renormalize) weight /= kTiny + WarpSum(weight);
  if (lane < shape.top_k) weights[t * shape.top_k + lane] = weight * shape.scaling;
}

// The sequence of a token: the last i with begins[i] <= t. Empty sequences have no tokens.
__device__ int SequenceOf(const int32_t* begins, int sequences, int64_t t) {
  int low = 0, high = sequences;  // begins[low] <= t < begins[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begins[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

constexpr int kCountSlots = 4096;  // slots per block

__global__ void CountExpertsKernel(RouterShape shape, const int32_t* ids, const int32_t* begins,
                                   int sequences, int32_t* counts) {
  __shared__ int32_t sums[kMaxExperts];
  const bool one_set = begins == nullptr;
  for (int e = threadIdx.x; e < kMaxExperts; e += kThreads) sums[e] = 0;
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * kCountSlots;
  const int64_t last = min(first + kCountSlots, shape.m * shape.top_k);
  for (int64_t slot = first + threadIdx.x; slot < last; slot += kThreads) {
    const int32_t e = ids[slot];
    if (e < 0) continue;
    if (one_set) {
      atomicAdd(&sums[e], 1);
    } else {
      const int64_t i = SequenceOf(begins, sequences, slot / shape.top_k);
      atomicAdd(&counts[i * shape.experts + e], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; one_set && e < shape.experts; e += kThreads)
    if (sums[e] > 0) atomicAdd(&counts[e], sums[e]);
}

__global__ void CoefficientsKernel(RouterShape shape, const int32_t* counts, const int32_t* tokens,
                                   int sets, double weight, double step_tokens,
                                   float* coefficients) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{sets} * shape.experts) return;
  const double chosen = static_cast<double>(shape.top_k) * max(1, tokens[i / shape.experts]);
  const double f = counts[i] * static_cast<double>(shape.experts) / chosen;
  coefficients[i] = static_cast<float>(weight * f / step_tokens);
}

// The gradient of the balance losses with respect to p[e].
struct BalanceOfToken {
  const float *batch, *sequence;

  __device__ BalanceOfToken(const RouterShape& shape, const BalanceParams& p, int64_t t)
      : batch(p.batch), sequence(nullptr) {
    if (p.sequence != nullptr)
      sequence = p.sequence + int64_t{SequenceOf(p.begins, p.sequences, t)} * shape.experts;
  }
  __device__ bool any() const { return batch != nullptr || sequence != nullptr; }
  __device__ float operator[](int e) const {
    return (batch != nullptr ? batch[e] : 0.0f) + (sequence != nullptr ? sequence[e] : 0.0f);
  }
};

// Σ scores, by which sigmoids are normalized; 1 for softmax.
__device__ float ScoreSum(Scoring scoring, const float* scores, int experts, int lane) {
  if (scoring != Scoring::kSigmoid) return 1.0f;
  float sum = 0;
  for (int e = lane; e < experts; e += kWarp) sum += scores[e];
  return kTiny + WarpSum(sum);
}

__global__ void BalanceLossesKernel(RouterShape shape, BalanceParams balance,
                                    const float* all_logits, const float* all_scores,
                                    float* losses) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp, experts = shape.experts;
  if (t >= shape.m) return;
  const float* scores = all_scores + t * experts;
  const BalanceOfToken dp(shape, balance, t);
  float loss = 0;
  if (dp.any()) {
    for (int e = lane; e < experts; e += kWarp) loss += dp[e] * scores[e];
    loss = WarpSum(loss) / ScoreSum(shape.scoring, scores, experts, lane);
  }
  if (balance.z != 0) {
    const float log_sum = LogSum(all_logits + t * experts, experts, lane);
    loss += balance.z * log_sum * log_sum;
  }
  if (lane == 0) losses[t] = loss;
}

// The formulas, and their order, are those of Router::Backward (train/layers/router.cc).
__global__ void RouterGradientKernel(RouterShape shape, BalanceParams balance,
                                     const float* all_logits, const float* all_scores,
                                     const int32_t* ids, const float* weights,
                                     const float* dweights, float* all_dlogits) {
  __shared__ float dscores_of_warps[kWarps][kMaxExperts];
  const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp, experts = shape.experts;
  if (t >= shape.m) return;
  float* dscores = dscores_of_warps[threadIdx.x / kWarp];
  const float *logits = all_logits + t * experts, *scores = all_scores + t * experts;
  float* dlogits = all_dlogits + t * experts;

  // Through the weights of the chosen experts: lane j handles slot j.
  const bool is_slot = lane < shape.top_k;
  const int64_t slot = t * shape.top_k + lane;
  const int id = is_slot ? ids[slot] : -1;
  const float weight = is_slot ? weights[slot] : 0.0f, dweight = is_slot ? dweights[slot] : 0.0f;
  const float along = WarpSum(weight * dweight);
  for (int e = lane; e < experts; e += kWarp) dscores[e] = 0;
  __syncwarp();
  float direct = 0;  // gradient of a chosen logit that does not pass through its score
  if (shape.scoring == Scoring::kTopKSoftmax) {
    direct = weight * (dweight - along / shape.scaling);
  } else {
    float sum = 1, subtracted = 0;
    if (shape.renormalize) {
      sum = kTiny + WarpSum(id < 0 ? 0.0f : scores[id]);
      subtracted = along;
    }
    if (id >= 0) dscores[id] = (dweight * shape.scaling - subtracted) / sum;
  }
  __syncwarp();

  // Through p, the probabilities of the balance losses.
  const BalanceOfToken dp(shape, balance, t);
  if (dp.any()) {
    const float sum = ScoreSum(shape.scoring, scores, experts, lane);
    float back = 0;
    if (shape.scoring == Scoring::kSigmoid) {
      for (int e = lane; e < experts; e += kWarp) back += dp[e] * scores[e];
      back = WarpSum(back) / sum;
    }
    for (int e = lane; e < experts; e += kWarp) dscores[e] += (dp[e] - back) / sum;
  }

  // Through the scores, and the z-loss.
  float mean = 0;
  if (shape.scoring != Scoring::kSigmoid) {
    for (int e = lane; e < experts; e += kWarp) mean += dscores[e] * scores[e];
    mean = WarpSum(mean);
  }
  const float log_sum = balance.z != 0 ? LogSum(logits, experts, lane) : 0.0f;
  const float dz = 2.0f * balance.z * log_sum;
  for (int e = lane; e < experts; e += kWarp) {
    const float s = scores[e];
    float d =
        shape.scoring == Scoring::kSigmoid ? dscores[e] * s * (1.0f - s) : s * (dscores[e] - mean);
    if (balance.z != 0) d += dz * expf(logits[e] - log_sum);
    dlogits[e] = d;
  }
  __syncwarp();
  if (shape.scoring == Scoring::kTopKSoftmax && id >= 0) dlogits[id] += direct;
}

// --- order of slots by expert: counting sort in tiles of kThreads slots ---

constexpr int kMaxOrderedExperts = 1024, kScanThreads = 1024;

// counts [experts, tiles]
__global__ void CountTilesKernel(const int32_t* ids, int64_t slots, int experts, int tiles,
                                 int32_t* counts) {
  __shared__ int32_t sums[kMaxOrderedExperts];
  for (int e = threadIdx.x; e < experts; e += kThreads) sums[e] = 0;
  __syncthreads();
  const int64_t slot = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int32_t id = slot < slots ? ids[slot] : -1;
  if (id >= 0) atomicAdd(&sums[id], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads)
    counts[int64_t{e} * tiles + blockIdx.x] = sums[e];
}

// The sum of x over the lanes up to this one.
__device__ __forceinline__ int32_t PrefixSum(int32_t x, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int32_t other = __shfl_up_sync(~0u, x, distance);
    if (lane >= distance) x += other;
  }
  return x;
}

// Replaces counts by exclusive prefix sums along the tiles of each expert, and computes begins. One
// block; one warp per expert.
__global__ void ScanTilesKernel(int experts, int tiles, int32_t* counts, int32_t* begins) {
  __shared__ int32_t totals[kMaxOrderedExperts];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int e = warp; e < experts; e += kScanThreads / kWarp) {
    int32_t before = 0;
    for (int first = 0; first < tiles; first += kWarp) {
      const int tile = first + lane;
      const int32_t count = tile < tiles ? counts[int64_t{e} * tiles + tile] : 0;
      const int32_t sum = PrefixSum(count, lane);
      if (tile < tiles) counts[int64_t{e} * tiles + tile] = before + sum - count;
      before += __shfl_sync(~0u, sum, kWarp - 1);
    }
    if (lane == 0) totals[e] = before;
  }
  __syncthreads();
  if (warp > 0) return;
  int32_t before = 0;
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + lane;
    const int32_t total = e < experts ? totals[e] : 0;
    const int32_t sum = PrefixSum(total, lane);
    if (e < experts) begins[e] = before + sum - total;
    before += __shfl_sync(~0u, sum, kWarp - 1);
  }
  if (lane == 0) begins[experts] = before;
}

__global__ void PlaceSlotsKernel(const int32_t* ids, int64_t slots, int tiles,
                                 const int32_t* prefixes, SlotOrder order) {
  __shared__ int32_t of_tile[kThreads];
  const int64_t slot = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int32_t id = slot < slots ? ids[slot] : -1;
  of_tile[threadIdx.x] = id;
  __syncthreads();
  if (slot >= slots) return;
  if (id < 0) {
    order.position[slot] = -1;
    return;
  }
  int32_t row = order.begins[id] + prefixes[int64_t{id} * tiles + blockIdx.x];
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i) row += of_tile[i] == id;
  order.position[slot] = row;
}

// --- rows of experts ---

// Expert rows are read and written by token, one block per token and one warp per slot: the warps
// of a block read the token's row at the same time, so only the first one reads it from memory.
constexpr int kSlotWarps = 8;

// Parts of a row that a lane loads before it stores the first one.
constexpr int kCopies = 4;

__global__ void GatherExpertRowsKernel(ExpertRowsShape shape, ConstArray x, Array out) {
  const int64_t t = blockIdx.x;
  const int lane = threadIdx.x % kWarp;
  for (int j = threadIdx.x / kWarp; j < shape.k; j += kSlotWarps) {
    const int64_t r = shape.position[t * shape.k + j];
    if (r < 0) continue;
    for (int64_t first = lane * 4; first < shape.hidden; first += kCopies * kWarp * 4) {
      float4 values[kCopies];
#pragma unroll
      for (int c = 0; c < kCopies; ++c) {
        const int64_t i = first + c * kWarp * 4;
        if (i < shape.hidden) values[c] = Load4(x, t * shape.hidden + i);
      }
#pragma unroll
      for (int c = 0; c < kCopies; ++c) {
        const int64_t i = first + c * kWarp * 4;
        if (i < shape.hidden) Store4(out, r * shape.hidden + i, values[c]);
      }
    }
  }
}

// Slots, or parts of a row, whose loads a thread issues before it uses the first one.
constexpr int kBatch = 4;

__global__ void CombineExpertRowsKernel(ExpertRowsShape shape, ConstArray outputs,
                                        const float* weights, ConstArray base, Array y) {
  const int64_t t = blockIdx.x;
  for (int64_t i = threadIdx.x * 4; i < shape.hidden; i += blockDim.x * 4) {
    float4 sum = base.data != nullptr ? Load4(base, t * shape.hidden + i) : make_float4(0, 0, 0, 0);
    for (int first = 0; first < shape.k; first += kBatch) {
      int32_t rows[kBatch];
      float4 values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        rows[j] = first + j < shape.k ? shape.position[t * shape.k + first + j] : -1;
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (rows[j] < 0) continue;
        values[j] = Load4(outputs, rows[j] * shape.hidden + i);
        if (weights != nullptr) values[j] = Scale4(values[j], weights[t * shape.k + first + j]);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (rows[j] >= 0) sum = Add4(sum, values[j]);
    }
    Store4(y, t * shape.hidden + i, sum);
  }
}

// A lane reads an element of the output before it writes its gradient.
__global__ void CombineGradientKernel(ExpertRowsShape shape, ConstArray dy, ConstArray outputs,
                                      const float* weights, Array doutputs, float* dweights) {
  const int64_t t = blockIdx.x;
  const int lane = threadIdx.x % kWarp;
  for (int slot_of_token = threadIdx.x / kWarp; slot_of_token < shape.k;
       slot_of_token += kSlotWarps) {
    const int64_t slot = t * shape.k + slot_of_token, r = shape.position[slot];
    float dot = 0;
    if (r >= 0) {
      const float weight = weights[slot];
      for (int64_t first = lane * 4; first < shape.hidden; first += kBatch * kWarp * 4) {
        float4 d[kBatch], output[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int64_t i = first + j * kWarp * 4;
          if (i >= shape.hidden) continue;
          d[j] = Load4(dy, t * shape.hidden + i);
          output[j] = Load4(outputs, r * shape.hidden + i);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int64_t i = first + j * kWarp * 4;
          if (i >= shape.hidden) continue;
          dot += Dot4(d[j], output[j]);
          Store4(doutputs, r * shape.hidden + i, Scale4(d[j], weight));
        }
      }
      dot = WarpSum(dot);
    }
    if (lane == 0) dweights[slot] = dot;
  }
}

void CheckRouter(const RouterShape& shape) {
  if (shape.experts < 1 || shape.experts > kMaxExperts || shape.top_k < 1 || shape.top_k > kMaxTopK)
    Refuse("router kernels with {} experts and top {}: at most {} and {} are supported",
           {shape.experts, shape.top_k, kMaxExperts, kMaxTopK});
}

int RowThreads(int64_t width) {
  return static_cast<int>(std::clamp<int64_t>(CeilDiv(width, 4 * kWarp) * kWarp, kWarp, kThreads));
}

int SlotThreads(int k) { return std::min(k, kSlotWarps) * kWarp; }

void CheckHidden(int64_t hidden) {
  if (hidden % 4 != 0) Refuse("expert rows of {} elements, want a multiple of 4", {hidden});
}

}  // namespace

void RouterWeights(const RouterShape& shape, const float* logits, const int32_t* ids, float* scores,
                   float* weights, Stream stream) {
  CheckRouter(shape);
  Launch("router weights", RouterWeightsKernel, Grid(CeilDiv(shape.m, kWarps)), kThreads, 0, stream,
         shape, logits, ids, scores, weights);
}

void CountExperts(const RouterShape& shape, const int32_t* ids, const int32_t* begins,
                  int sequences, int32_t* counts, Stream stream) {
  CheckRouter(shape);
  Launch("counts of experts", CountExpertsKernel, Grid(CeilDiv(shape.m * shape.top_k, kCountSlots)),
         kThreads, 0, stream, shape, ids, begins, sequences, counts);
}

void BalanceCoefficients(const RouterShape& shape, const int32_t* counts, const int32_t* tokens,
                         int sets, double weight, double step_tokens, float* coefficients,
                         Stream stream) {
  Launch("coefficients of balance losses", CoefficientsKernel,
         Grid(CeilDiv(int64_t{sets} * shape.experts, kThreads)), kThreads, 0, stream, shape, counts,
         tokens, sets, weight, step_tokens, coefficients);
}

void BalanceLossesOfTokens(const RouterShape& shape, const BalanceParams& balance,
                           const float* logits, const float* scores, float* losses, Stream stream) {
  CheckRouter(shape);
  Launch("balance losses", BalanceLossesKernel, Grid(CeilDiv(shape.m, kWarps)), kThreads, 0, stream,
         shape, balance, logits, scores, losses);
}

void RouterGradient(const RouterShape& shape, const BalanceParams& balance, const float* logits,
                    const float* scores, const int32_t* ids, const float* weights,
                    const float* dweights, float* dlogits, Stream stream) {
  CheckRouter(shape);
  Launch("gradient of the router", RouterGradientKernel, Grid(CeilDiv(shape.m, kWarps)), kThreads,
         0, stream, shape, balance, logits, scores, ids, weights, dweights, dlogits);
}

int64_t SlotOrderScratch(int64_t slots, int experts) { return CeilDiv(slots, kThreads) * experts; }

void OrderSlots(const int32_t* ids, int64_t slots, int experts, const SlotOrder& order,
                int32_t* scratch, Stream stream) {
  if (experts > kMaxOrderedExperts)
    Refuse("order of slots for {} experts, at most {} are supported",
           {experts, kMaxOrderedExperts});
  const int tiles = static_cast<int>(CeilDiv(slots, kThreads));
  Launch("counts of slots", CountTilesKernel, Grid(tiles), kThreads, 0, stream, ids, slots, experts,
         tiles, scratch);
  Launch("prefix sums of slots", ScanTilesKernel, Grid(1), kScanThreads, 0, stream, experts, tiles,
         scratch, order.begins);
  Launch("order of slots", PlaceSlotsKernel, Grid(tiles), kThreads, 0, stream, ids, slots, tiles,
         scratch, order);
}

void GatherExpertRows(const ExpertRowsShape& shape, ConstArray x, Array out, Stream stream) {
  CheckHidden(shape.hidden);
  Launch("gather of expert rows", GatherExpertRowsKernel, Grid(shape.m), SlotThreads(shape.k), 0,
         stream, shape, x, out);
}

void CombineExpertRows(const ExpertRowsShape& shape, ConstArray outputs, const float* weights,
                       ConstArray base, Array y, Stream stream) {
  CheckHidden(shape.hidden);
  Launch("combine of expert rows", CombineExpertRowsKernel, Grid(shape.m), RowThreads(shape.hidden),
         0, stream, shape, outputs, weights, base, y);
}

void CombineExpertRowsGradient(const ExpertRowsShape& shape, ConstArray dy, ConstArray outputs,
                               const float* weights, Array doutputs, float* dweights,
                               Stream stream) {
  CheckHidden(shape.hidden);
  Launch("gradient of combine", CombineGradientKernel, Grid(shape.m), SlotThreads(shape.k), 0,
         stream, shape, dy, outputs, weights, doutputs, dweights);
}

}  // namespace switchyard::train::gpu
