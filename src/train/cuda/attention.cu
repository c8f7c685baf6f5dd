// Problem: attention forward, where the kernel of attention_hopper.cu does not run.
// Tiling: FlashAttention-2 (Dao, arXiv:2307.08691) on tensor cores. A block has 64 rows of one
// head, 16 per warp, and visits the visible keys in tiles of 64, in ascending order.
// Pipeline: two tiles of keys and values are in shared memory: one is copied while the other is
// used. Measured on one H200, 16 heads of 128, 4 × 4096 rows: 32 % of the product rate.
#include "kernels/cuda/device/launch.h"
#include "train/cuda/attention.h"
#include "train/cuda/attention_tiles.cuh"
#include "train/cuda/launch.cuh"
#include "train/cuda/refuse.h"

namespace switchyard::train::gpu {
namespace {

constexpr int kKeys = 64;

template <int kQk, int kV>
struct Tiles {
  static constexpr int kQueryBytes = TileLayout<kQk, kTileRows>::kBytes;
  static constexpr int kKeyBytes = TileLayout<kQk, kKeys>::kBytes;
  static constexpr int kStageBytes = kKeyBytes + TileLayout<kV, kKeys>::kBytes;
  static constexpr int kBytes = kQueryBytes + 2 * kStageBytes;
};

struct ForwardParams {
  AttentionShape shape;
  HeadArray q, k, v;
  MutableHeadArray out;
  float* log_sums;
};

// Running maximum (of scores · log2 e) and sum of a thread's two rows.
struct RowState {
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// Replaces scores by probabilities relative to the new maximum. Returns in `shrink` the factors of
// earlier sums.
__device__ __forceinline__ void Softmax(float (&scores)[kKeys / 8][4], float scale, RowState& state,
                                        float (&shrink)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = state.largest[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]) * scale);
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const float shift = largest == -INFINITY ? 0.0f : largest;  // no visible key yet
    shrink[half] = ptx::Exp2(state.largest[half] - shift);
    state.largest[half] = largest;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = ptx::Exp2(fmaf(scores[n][i], scale, -shift));
        sum += scores[n][i];
      }
    // The four lanes of a row add their sums at the end.
    state.sum[half] = state.sum[half] * shrink[half] + sum;
  }
}

// `scale` is positive. Grid: row tiles of the longest sequence, heads, sequences.
template <int kQk, int kV, bool kHopper>
__global__ void __launch_bounds__(kAttentionThreads)
    AttentionTileKernel(const __grid_constant__ ForwardParams p) {
  using T = Tiles<kQk, kV>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const AttentionShape& shape = p.shape;
  const int begin = shape.begins[blockIdx.z], rows = shape.begins[blockIdx.z + 1] - begin;
  // Tiles with more keys first, because they take longer.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  if (first >= rows) return;
  const int64_t head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
  const HeadView k = ViewOf(p.k, kv_head, begin), v = ViewOf(p.v, kv_head, begin);
  const uint32_t queries = ptx::SharedAddress(memory), stages = queries + T::kQueryBytes;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_key = FirstKey<kKeys>(first, shape.window);
  const int last_key = min(rows, first + kTileRows);  // exclusive

  CopyTile<kQk, kTileRows>(queries, ViewOf(p.q, head, begin), first, rows);
  CopyTile<kQk, kKeys>(stages, k, first_key, rows);
  CopyTile<kV, kKeys>(stages + T::kKeyBytes, v, first_key, rows);
  ptx::CommitCopies();

  const float scale = shape.scale * kLog2E;
  RowState state;
  float sums[kV / 8][4];
  Clear(sums);
  for (int key = first_key, stage = 0; key < last_key; key += kKeys, stage ^= 1) {
    if (key + kKeys < last_key) {
      const uint32_t next = stages + static_cast<uint32_t>(stage ^ 1) * T::kStageBytes;
      CopyTile<kQk, kKeys>(next, k, key + kKeys, rows);
      CopyTile<kV, kKeys>(next + T::kKeyBytes, v, key + kKeys, rows);
    }
    ptx::CommitCopies();
    AwaitStage<kHopper>();
    const uint32_t at = stages + static_cast<uint32_t>(stage) * T::kStageBytes;
    float scores[kKeys / 8][4];
    ClearAll<kHopper>(scores);
    MultiplyRows<kHopper, kQk, kKeys>(queries, warp_row, at, scores);
    Finish<kHopper>(scores);
    const int row = first + warp_row + lane / 4;
    if (!AllVisible(first + warp_row, 16, key, kKeys, shape.window)) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!IsVisible(row + i / 2 * 8, key + n * 8 + lane % 4 * 2 + i % 2, shape.window))
            scores[n][i] = -INFINITY;
    }
    float shrink[2];
    Softmax(scores, scale, state, shrink);
#pragma unroll
    for (int n = 0; n < kV / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= shrink[i / 2];
    MultiplyFragments<kHopper, kV, kKeys>(scores, at + T::kKeyBytes, sums);
    Finish<kHopper>(sums);
    __syncthreads();  // all warps have read the stage
  }

  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    factors[half] = 1.0f / sum;
    const int r = first + warp_row + lane / 4 + 8 * half;
    if (lane % 4 == 0 && r < rows)
      p.log_sums[head * shape.rows + begin + r] = (state.largest[half] + log2f(sum)) * kLn2;
  }
  StoreSums<kV>(p.out, head, begin, first + warp_row, rows, sums, factors[0], factors[1]);
}

template <int kQk, int kV, bool kHopper>
void StartTilesOf(const ForwardParams& p, Stream stream) {
  static switchyard::cuda::SharedMemoryOptIn setup;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(
      setup.On(device, AttentionTileKernel<kQk, kV, kHopper>, Tiles<kQk, kV>::kBytes),
      "shared memory of attention");
  Launch("attention", AttentionTileKernel<kQk, kV, kHopper>,
         Grid(CeilDiv(p.shape.longest, kTileRows), p.shape.heads, p.shape.sequences),
         kAttentionThreads, Tiles<kQk, kV>::kBytes, stream, p);
}
template <int kQk, int kV>
void StartTiles(const ForwardParams& p, Stream stream) {
  if (UsesWgmma(p.shape)) return StartTilesOf<kQk, kV, true>(p, stream);
  StartTilesOf<kQk, kV, false>(p, stream);
}

// Any format and head dimensions up to kMaxDim: one warp per row and head, one key at a time.
constexpr int kMaxDim = 256, kPlainWarps = 4;

__global__ void __launch_bounds__(kPlainWarps* kWarp)
    PlainAttentionKernel(const __grid_constant__ ForwardParams p) {
  const AttentionShape& s = p.shape;
  const int begin = s.begins[blockIdx.z], rows = s.begins[blockIdx.z + 1] - begin;
  const int row = static_cast<int>(blockIdx.x * kPlainWarps + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  const int64_t head = blockIdx.y, kv_head = head / (s.heads / s.kv_heads), t = begin + row;
  float q[kMaxDim / kWarp], sums[kMaxDim / kWarp] = {};
  for (int i = 0; i < kMaxDim / kWarp; ++i) {
    const int c = i * kWarp + lane;
    q[i] = c < s.qk_dim ? LoadOne(p.q.data, t * p.q.row + head * p.q.head + c) : 0.0f;
  }
  float largest = -INFINITY, sum = 0;
  for (int key = FirstKey<1>(row, s.window); key <= row; ++key) {
    const int64_t k_at = (begin + key) * p.k.row + kv_head * p.k.head;
    const int64_t v_at = (begin + key) * p.v.row + kv_head * p.v.head;
    float score = 0;
    for (int i = 0; i < kMaxDim / kWarp; ++i) {
      const int c = i * kWarp + lane;
      if (c < s.qk_dim) score += q[i] * LoadOne(p.k.data, k_at + c);
    }
    score = WarpSum(score) * s.scale;
    const float next = fmaxf(largest, score);
    const float shrink = expf(largest - next), weight = expf(score - next);
    largest = next;
    sum = sum * shrink + weight;
    for (int i = 0; i < kMaxDim / kWarp; ++i) {
      const int c = i * kWarp + lane;
      if (c < s.v_dim) sums[i] = sums[i] * shrink + weight * LoadOne(p.v.data, v_at + c);
    }
  }
  for (int i = 0; i < kMaxDim / kWarp; ++i) {
    const int c = i * kWarp + lane;
    if (c < s.v_dim) StoreOne(p.out.data, t * p.out.row + head * p.out.head + c, sums[i] / sum);
  }
  if (lane == 0) p.log_sums[head * s.rows + t] = largest + logf(sum);
}

}  // namespace

bool IsTileArray(const HeadArray& a) {
  return a.data.bf16 && reinterpret_cast<uintptr_t>(a.data.data) % 16 == 0 && a.row % 8 == 0 &&
         a.head % 8 == 0;
}

bool UsesWgmma(const AttentionShape& s) {
  return s.tiles != AttentionTiles::kMmaSync && switchyard::cuda::IsHopper();
}

bool UsesAttentionTiles(const AttentionShape& s) {
  return (s.qk_dim == 64 && s.v_dim == 64) || (s.qk_dim == 128 && s.v_dim == 128) ||
         (s.qk_dim == 192 && s.v_dim == 128);
}

void CheckAttention(const AttentionShape& s) {
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0 || s.heads > 65535 || s.sequences > 65535)
    Refuse("attention of {} heads, {} key heads and {} sequences",
           {s.heads, s.kv_heads, s.sequences});
  if (s.qk_dim > kMaxDim || s.v_dim > kMaxDim)
    Refuse("attention with head dimensions {} and {}, at most {}", {s.qk_dim, s.v_dim, kMaxDim});
  if (!(s.scale > 0)) Refuse("attention with a scale that is not positive", {});
}

void Attention(const AttentionShape& shape, HeadArray q, HeadArray k, HeadArray v,
               MutableHeadArray out, float* log_sums, Stream stream) {
  CheckAttention(shape);
  const ForwardParams p = {shape, q, k, v, out, log_sums};
  if (UsesAttentionTiles(shape) && IsTileArray(q) && IsTileArray(k) && IsTileArray(v) &&
      IsTileArray(out)) {
    if (UsesHopperAttention(shape) && HasTensorMap(q, shape.heads, shape.qk_dim) &&
        HasTensorMap(k, shape.kv_heads, shape.qk_dim) &&
        HasTensorMap(v, shape.kv_heads, shape.v_dim))
      return StartHopperAttention(shape, q, k, v, out, log_sums, stream);
    if (shape.qk_dim == 64) return StartTiles<64, 64>(p, stream);
    if (shape.qk_dim == 128) return StartTiles<128, 128>(p, stream);
    return StartTiles<192, 128>(p, stream);
  }
  Launch("attention", PlainAttentionKernel,
         Grid(CeilDiv(shape.longest, kPlainWarps), shape.heads, shape.sequences),
         kPlainWarps * kWarp, 0, stream, p);
}

}  // namespace switchyard::train::gpu
