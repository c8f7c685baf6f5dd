// Problem: attention backward, where the kernels of attention_hopper.cuh do not run.
// Tiling: FlashAttention-2 (Dao, arXiv:2307.08691) on tensor cores (mma.sync or wgmma), as two
// kernels that both compute scores and probabilities again. One owns 64 keys and sums dk and dv
// over the rows that see them; the other owns 64 rows and sums dq over the keys. So no sum is
// shared by two blocks, and every order is fixed. This takes 7 products where sums with atomics
// would take 5.
// Pipeline: two tiles in shared memory, as in attention.cu.
// Measured on one H200, 16 heads of 128, 4 × 4096 rows: 21 % of the product rate.
#include "kernels/cuda/device/launch.h"
#include "train/cuda/attention.h"
#include "train/cuda/attention_tiles.cuh"
#include "train/cuda/launch.cuh"

namespace switchyard::train::gpu {
namespace {

// along[h, t] = Σ dout · out: one warp per row and head.
constexpr int kPlainWarps = 4;

// kFours: a lane reads four adjacent elements at a time, which are aligned.
template <bool kFours>
__global__ void AlongKernel(const __grid_constant__ AttentionGradientParams p) {
  const int64_t t = int64_t{blockIdx.x} * kPlainWarps + threadIdx.x / kWarp, head = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (t >= p.shape.rows) return;
  float sum = 0;
  const int64_t out = t * p.out.row + head * p.out.head;
  const int64_t dout = t * p.dout.row + head * p.dout.head;
  if constexpr (kFours) {
    for (int64_t i = 4 * lane; i < p.shape.v_dim; i += 4 * kWarp)
      sum += Dot4(Load4(p.out.data, out + i), Load4(p.dout.data, dout + i));
  } else {
    for (int64_t i = lane; i < p.shape.v_dim; i += kWarp)
      sum += LoadOne(p.out.data, out + i) * LoadOne(p.dout.data, dout + i);
  }
  sum = WarpSum(sum);
  if (lane == 0) p.along[head * p.shape.rows + t] = sum;
}

// The probability of a score and the gradient of the unscaled score.
struct Probability {
  float p, dscore;
};
__device__ __forceinline__ Probability ProbabilityOf(float score, float dp, float scale,
                                                     float log_sum, float along) {
  const float p = ptx::Exp2(score * (scale * kLog2E) - log_sum * kLog2E);
  return {p, p * (dp - along) * scale};
}

// --- dk and dv ---

template <int kQk, int kV, int kQueries>
struct KeyTiles {
  static constexpr int kKeyBytes = TileLayout<kQk, kTileRows>::kBytes;
  static constexpr int kValueBytes = TileLayout<kV, kTileRows>::kBytes;
  static constexpr int kQueryBytes = TileLayout<kQk, kQueries>::kBytes;
  static constexpr int kStageBytes = kQueryBytes + TileLayout<kV, kQueries>::kBytes;
  static constexpr int kFloats = 2 * kQueries;  // log-sums and products of a stage
  static constexpr int kTileBytes = kKeyBytes + kValueBytes + 2 * kStageBytes;
  static constexpr int kBytes = kTileBytes + 2 * kFloats * 4;
};

// Scores are computed transposed, [keys, rows], so that the fragments of a warp are the left
// operands of the products that sum over the rows. Grid: key tiles of the longest sequence, key
// heads, sequences.
template <int kQk, int kV, int kQueries, bool kHopper>
__global__ void __launch_bounds__(kAttentionThreads)
    KeyGradientKernel(const __grid_constant__ AttentionGradientParams p) {
  using T = KeyTiles<kQk, kV, kQueries>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const AttentionShape& shape = p.shape;
  const int begin = shape.begins[blockIdx.z], rows = shape.begins[blockIdx.z + 1] - begin;
  // Key tiles that more rows see come first in the grid.
  const int first = static_cast<int>(blockIdx.x) * kTileRows;
  if (first >= rows) return;
  const int64_t kv_head = blockIdx.y;
  const int group = static_cast<int>(shape.heads / shape.kv_heads);
  const uint32_t keys = ptx::SharedAddress(memory), values = keys + T::kKeyBytes;
  const uint32_t stages = values + T::kValueBytes;
  auto* const floats = reinterpret_cast<float*>(memory + T::kTileBytes);
  const int warp_key = static_cast<int>(threadIdx.x) / kWarp * 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // Rows [first, last_row) see keys of this tile.
  const int last_row = shape.window > 0 ? min(rows, first + kTileRows - 1 + shape.window) : rows;
  const int tiles = (last_row - first + kQueries - 1) / kQueries;

  // Step i is row tile i % tiles of query head i / tiles of the group.
  const auto copy = [&](int step, int stage) {
    const int64_t head = kv_head * group + step / tiles;
    const int row = first + step % tiles * kQueries;
    const uint32_t at = stages + static_cast<uint32_t>(stage) * T::kStageBytes;
    CopyTile<kQk, kQueries>(at, ViewOf(p.q, head, begin), row, rows);
    CopyTile<kV, kQueries>(at + T::kQueryBytes, ViewOf(p.dout, head, begin), row, rows);
    float* const of_stage = floats + stage * T::kFloats;
    CopyFloats<kQueries>(of_stage, p.log_sums + head * shape.rows + begin, row, rows);
    CopyFloats<kQueries>(of_stage + kQueries, p.along + head * shape.rows + begin, row, rows);
  };
  CopyTile<kQk, kTileRows>(keys, ViewOf(p.k, kv_head, begin), first, rows);
  CopyTile<kV, kTileRows>(values, ViewOf(p.v, kv_head, begin), first, rows);
  copy(0, 0);
  ptx::CommitCopies();

  float dkeys[kQk / 8][4], dvalues[kV / 8][4];
  Clear(dkeys);
  Clear(dvalues);
  const int steps = group * tiles;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    if (step + 1 < steps) copy(step + 1, stage ^ 1);
    ptx::CommitCopies();
    AwaitStage<kHopper>();
    const uint32_t queries = stages + static_cast<uint32_t>(stage) * T::kStageBytes;
    const uint32_t douts = queries + T::kQueryBytes;
    const int row0 = first + step % tiles * kQueries;
    float probabilities[kQueries / 8][4], dscores[kQueries / 8][4];
    ClearAll<kHopper>(probabilities, dscores);
    MultiplyRows<kHopper, kQk, kQueries>(keys, warp_key, queries, probabilities);
    MultiplyRows<kHopper, kV, kQueries>(values, warp_key, douts, dscores);
    Finish<kHopper>(probabilities, dscores);
    const float* const of_stage = floats + stage * T::kFloats;
    const bool all =
        row0 + kQueries <= rows && AllVisible(row0, kQueries, first + warp_key, 16, shape.window);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int in_tile = n * 8 + lane % 4 * 2 + i % 2, row = row0 + in_tile;
        const int key = first + warp_key + lane / 4 + i / 2 * 8;
        Probability x = {0, 0};
        if (all || (row < rows && IsVisible(row, key, shape.window)))
          x = ProbabilityOf(probabilities[n][i], dscores[n][i], shape.scale, of_stage[in_tile],
                            of_stage[kQueries + in_tile]);
        probabilities[n][i] = x.p;
        dscores[n][i] = x.dscore;
      }
    }
    MultiplyFragments<kHopper, kV, kQueries>(probabilities, douts, dvalues);
    MultiplyFragments<kHopper, kQk, kQueries>(dscores, queries, dkeys);
    Finish<kHopper>(dvalues, dkeys);
    __syncthreads();  // all warps have read the stage
  }
  StoreSums<kQk>(p.dk, kv_head, begin, first + warp_key, rows, dkeys, 1.0f, 1.0f);
  StoreSums<kV>(p.dv, kv_head, begin, first + warp_key, rows, dvalues, 1.0f, 1.0f);
}

// --- dq ---

template <int kQk, int kV, int kKeys>
struct QueryTiles {
  static constexpr int kQueryBytes = TileLayout<kQk, kTileRows>::kBytes;
  static constexpr int kDoutBytes = TileLayout<kV, kTileRows>::kBytes;
  static constexpr int kKeyBytes = TileLayout<kQk, kKeys>::kBytes;
  static constexpr int kStageBytes = kKeyBytes + TileLayout<kV, kKeys>::kBytes;
  static constexpr int kBytes = kQueryBytes + kDoutBytes + 2 * kStageBytes;
};

// Grid: row tiles of the longest sequence, heads, sequences.
template <int kQk, int kV, int kKeys, bool kHopper>
__global__ void __launch_bounds__(kAttentionThreads)
    QueryGradientKernel(const __grid_constant__ AttentionGradientParams p) {
  using T = QueryTiles<kQk, kV, kKeys>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const AttentionShape& shape = p.shape;
  const int begin = shape.begins[blockIdx.z], rows = shape.begins[blockIdx.z + 1] - begin;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows;
  if (first >= rows) return;
  const int64_t head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
  const HeadView k = ViewOf(p.k, kv_head, begin), v = ViewOf(p.v, kv_head, begin);
  const uint32_t queries = ptx::SharedAddress(memory), douts = queries + T::kQueryBytes;
  const uint32_t stages = douts + T::kDoutBytes;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_key = FirstKey<kKeys>(first, shape.window);
  const int last_key = min(rows, first + kTileRows);  // exclusive

  CopyTile<kQk, kTileRows>(queries, ViewOf(p.q, head, begin), first, rows);
  CopyTile<kV, kTileRows>(douts, ViewOf(p.dout, head, begin), first, rows);
  CopyTile<kQk, kKeys>(stages, k, first_key, rows);
  CopyTile<kV, kKeys>(stages + T::kKeyBytes, v, first_key, rows);
  ptx::CommitCopies();

  float log_sums[2], alongs[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = min(rows - 1, first + warp_row + lane / 4 + 8 * half);
    log_sums[half] = p.log_sums[head * shape.rows + begin + r];
    alongs[half] = p.along[head * shape.rows + begin + r];
  }
  float dqueries[kQk / 8][4];
  Clear(dqueries);
  for (int key = first_key, stage = 0; key < last_key; key += kKeys, stage ^= 1) {
    if (key + kKeys < last_key) {
      const uint32_t next = stages + static_cast<uint32_t>(stage ^ 1) * T::kStageBytes;
      CopyTile<kQk, kKeys>(next, k, key + kKeys, rows);
      CopyTile<kV, kKeys>(next + T::kKeyBytes, v, key + kKeys, rows);
    }
    ptx::CommitCopies();
    AwaitStage<kHopper>();
    const uint32_t keys = stages + static_cast<uint32_t>(stage) * T::kStageBytes;
    float scores[kKeys / 8][4], dscores[kKeys / 8][4];
    ClearAll<kHopper>(scores, dscores);
    MultiplyRows<kHopper, kQk, kKeys>(queries, warp_row, keys, scores);
    MultiplyRows<kHopper, kV, kKeys>(douts, warp_row, keys + T::kKeyBytes, dscores);
    Finish<kHopper>(scores, dscores);
    const int row = first + warp_row + lane / 4;
    const bool all = AllVisible(first + warp_row, 16, key, kKeys, shape.window);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool visible =
            all || IsVisible(row + i / 2 * 8, key + n * 8 + lane % 4 * 2 + i % 2, shape.window);
        dscores[n][i] = visible ? ProbabilityOf(scores[n][i], dscores[n][i], shape.scale,
                                                log_sums[i / 2], alongs[i / 2])
                                      .dscore
                                : 0.0f;
      }
    }
    MultiplyFragments<kHopper, kQk, kKeys>(dscores, keys, dqueries);
    Finish<kHopper>(dqueries);
    __syncthreads();  // all warps have read the stage
  }
  StoreSums<kQk>(p.dq, head, begin, first + warp_row, rows, dqueries, 1.0f, 1.0f);
}

// kStep: rows or keys of a step; fewer for large heads, whose sums need the registers.
template <int kQk, int kV, int kStep, bool kHopper>
void StartTilesOf(const AttentionGradientParams& p, Stream stream) {
  constexpr auto kKeyKernel = KeyGradientKernel<kQk, kV, kStep, kHopper>;
  constexpr auto kQueryKernel = QueryGradientKernel<kQk, kV, kStep, kHopper>;
  constexpr int kKeyBytes = KeyTiles<kQk, kV, kStep>::kBytes;
  constexpr int kQueryBytes = QueryTiles<kQk, kV, kStep>::kBytes;
  static switchyard::cuda::SharedMemoryOptIn keys_setup, queries_setup;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(keys_setup.On(device, kKeyKernel, kKeyBytes),
                          "shared memory of the gradient of keys");
  switchyard::cuda::Check(queries_setup.On(device, kQueryKernel, kQueryBytes),
                          "shared memory of the gradient of queries");
  const AttentionShape& s = p.shape;
  const int64_t tiles = CeilDiv(s.longest, kTileRows);
  Launch("gradient of keys", kKeyKernel, Grid(tiles, s.kv_heads, s.sequences), kAttentionThreads,
         kKeyBytes, stream, p);
  Launch("gradient of queries", kQueryKernel, Grid(tiles, s.heads, s.sequences), kAttentionThreads,
         kQueryBytes, stream, p);
}
template <int kQk, int kV, int kStep, int kHopperStep>
void StartTiles(const AttentionGradientParams& p, Stream stream) {
  if (UsesWgmma(p.shape)) return StartTilesOf<kQk, kV, kHopperStep, true>(p, stream);
  StartTilesOf<kQk, kV, kStep, false>(p, stream);
}

// --- any format, head dimensions up to 256 ---

constexpr int kMaxParts = 256 / kWarp;  // elements of a lane

__device__ __forceinline__ int64_t At(const HeadArray& a, int64_t t, int64_t head) {
  return t * a.row + head * a.head;
}
__device__ __forceinline__ int64_t At(const MutableHeadArray& a, int64_t t, int64_t head) {
  return t * a.row + head * a.head;
}

__device__ float DotOfHeads(const HeadArray& a, int64_t a_at, const HeadArray& b, int64_t b_at,
                            int64_t dim, int lane) {
  float sum = 0;
  for (int64_t c = lane; c < dim; c += kWarp)
    sum += LoadOne(a.data, a_at + c) * LoadOne(b.data, b_at + c);
  return WarpSum(sum);
}

// The probability and the gradient of the score of row t and key j (both in all rows).
__device__ Probability PlainProbability(const AttentionGradientParams& p, int64_t t, int64_t j,
                                        int64_t head, int64_t kv_head, int lane) {
  const AttentionShape& s = p.shape;
  const float score =
      DotOfHeads(p.q, At(p.q, t, head), p.k, At(p.k, j, kv_head), s.qk_dim, lane) * s.scale;
  const float dp = DotOfHeads(p.dout, At(p.dout, t, head), p.v, At(p.v, j, kv_head), s.v_dim, lane);
  const float probability = expf(score - p.log_sums[head * s.rows + t]);
  return {probability, probability * (dp - p.along[head * s.rows + t]) * s.scale};
}

// sums[i] += factor · x[lane + 32 i]
__device__ __forceinline__ void AddScaled(float (&sums)[kMaxParts], float factor,
                                          const HeadArray& x, int64_t at, int64_t dim, int lane) {
  for (int i = 0; i < kMaxParts; ++i)
    if (i * kWarp + lane < dim) sums[i] += factor * LoadOne(x.data, at + i * kWarp + lane);
}
__device__ __forceinline__ void StorePlain(const MutableHeadArray& to, int64_t at, int64_t dim,
                                           int lane, const float (&sums)[kMaxParts]) {
  for (int i = 0; i < kMaxParts; ++i)
    if (i * kWarp + lane < dim) StoreOne(to.data, at + i * kWarp + lane, sums[i]);
}

// One warp per row and head.
__global__ void PlainQueryGradientKernel(const __grid_constant__ AttentionGradientParams p) {
  const AttentionShape& s = p.shape;
  const int begin = s.begins[blockIdx.z], rows = s.begins[blockIdx.z + 1] - begin;
  const int row = static_cast<int>(blockIdx.x * kPlainWarps + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;
  const int64_t head = blockIdx.y, kv_head = head / (s.heads / s.kv_heads);
  float sums[kMaxParts] = {};
  for (int key = FirstKey<1>(row, s.window); key <= row; ++key) {
    const Probability x = PlainProbability(p, begin + row, begin + key, head, kv_head, lane);
    AddScaled(sums, x.dscore, p.k, At(p.k, begin + key, kv_head), s.qk_dim, lane);
  }
  StorePlain(p.dq, At(p.dq, begin + row, head), s.qk_dim, lane, sums);
}

// One warp per key and key head.
__global__ void PlainKeyGradientKernel(const __grid_constant__ AttentionGradientParams p) {
  const AttentionShape& s = p.shape;
  const int begin = s.begins[blockIdx.z], rows = s.begins[blockIdx.z + 1] - begin;
  const int key = static_cast<int>(blockIdx.x * kPlainWarps + threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (key >= rows) return;
  const int64_t kv_head = blockIdx.y, group = s.heads / s.kv_heads;
  const int last_row = s.window > 0 ? min(rows, key + s.window) : rows;
  float dkeys[kMaxParts] = {}, dvalues[kMaxParts] = {};
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int row = key; row < last_row; ++row) {
      const Probability x = PlainProbability(p, begin + row, begin + key, head, kv_head, lane);
      AddScaled(dkeys, x.dscore, p.q, At(p.q, begin + row, head), s.qk_dim, lane);
      AddScaled(dvalues, x.p, p.dout, At(p.dout, begin + row, head), s.v_dim, lane);
    }
  }
  StorePlain(p.dk, At(p.dk, begin + key, kv_head), s.qk_dim, lane, dkeys);
  StorePlain(p.dv, At(p.dv, begin + key, kv_head), s.v_dim, lane, dvalues);
}

bool AllTileArrays(const AttentionGradientParams& p) {
  return IsTileArray(p.q) && IsTileArray(p.k) && IsTileArray(p.v) && IsTileArray(p.dout) &&
         IsTileArray(p.dq) && IsTileArray(p.dk) && IsTileArray(p.dv);
}
bool AllHaveTensorMaps(const AttentionGradientParams& p) {
  const AttentionShape& s = p.shape;
  return HasTensorMap(p.q, s.heads, s.qk_dim) && HasTensorMap(p.k, s.kv_heads, s.qk_dim) &&
         HasTensorMap(p.v, s.kv_heads, s.v_dim) && HasTensorMap(p.dout, s.heads, s.v_dim);
}

}  // namespace

void AttentionGradient(const AttentionGradientParams& p, Stream stream) {
  const AttentionShape& s = p.shape;
  CheckAttention(s);
  const bool fours = IsTileArray(p.out) && IsTileArray(p.dout) && s.v_dim % 4 == 0;
  Launch("products of outputs and their gradients", fours ? AlongKernel<true> : AlongKernel<false>,
         Grid(CeilDiv(s.rows, kPlainWarps), s.heads), kPlainWarps * kWarp, 0, stream, p);
  if (UsesAttentionTiles(s) && AllTileArrays(p)) {
    if (UsesHopperAttention(s) && AllHaveTensorMaps(p)) {
      StartHopperKeyGradient(p, stream);
      return StartHopperQueryGradient(p, stream);
    }
    if (s.qk_dim == 64) return StartTiles<64, 64, 64, 64>(p, stream);
    if (s.qk_dim == 128) return StartTiles<128, 128, 32, 64>(p, stream);
    return StartTiles<192, 128, 32, 32>(p, stream);
  }
  const int64_t blocks = CeilDiv(s.longest, kPlainWarps);
  Launch("gradient of queries", PlainQueryGradientKernel, Grid(blocks, s.heads, s.sequences),
         kPlainWarps * kWarp, 0, stream, p);
  Launch("gradient of keys", PlainKeyGradientKernel, Grid(blocks, s.kv_heads, s.sequences),
         kPlainWarps * kWarp, 0, stream, p);
}

}  // namespace switchyard::train::gpu
