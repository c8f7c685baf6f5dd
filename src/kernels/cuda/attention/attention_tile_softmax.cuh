// Online softmax of the attention tiles, per block of keys.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_products.cuh"

namespace switchyard::cuda {

// A thread's fragment of the result of one split.
template <typename Shape>
struct TileAccumulator {
  float sums[Shape::kWarpColumns / 2];
  float weights[4];  // sums of probabilities, the same in every column
  float max[2];      // maximum score of each row, times scale · log2 e

  __device__ void Clear() {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
#pragma unroll
    for (float& weight : weights) weight = 0.0f;
    max[0] = max[1] = -INFINITY;
  }
};

// Properties of the lane's two rows of a tile.
struct TileRows {
  int begin[2], end[2];  // visible keys
  int head[2];
  int64_t out[2];  // offset of the lane's first columns in the output
};

template <typename Shape>
__device__ __forceinline__ TileRows TileRowsOf(const TiledAttention& p,
                                               const AttentionWorkItem& unit, const TileKeys& keys,
                                               int row_begin, const TileThread<Shape>& thread) {
  const int group = p.schedule.group;
  const int from = keys.first_position - keys.begin_row / group;  // position of row 0
  TileRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int flat = min(keys.begin_row + thread.RowOf(i), keys.end_row - 1), row = flat / group;
    rows.end[i] = from + row + 1;
    rows.begin[i] = p.schedule.window > 0 ? rows.end[i] - p.schedule.window : 0;
    rows.head[i] = unit.kv_head * group + flat - row * group;
    rows.out[i] = int64_t{row_begin + row} * p.launch.ldo + int64_t{rows.head[i]} * Shape::kVDim +
                  thread.column_warp * Shape::kWarpColumns + thread.lane % 4 * 2;
  }
  return rows;
}

// Whether a key of the block is masked for a row of the tile.
template <typename Shape>
__device__ __forceinline__ bool BlockHasMaskedKeys(const AttentionSchedule& s, const TileKeys& keys,
                                                   int block) {
  const int first_key = block * Shape::kKeys;
  return first_key + Shape::kKeys > keys.first_position + 1 ||
         (s.window > 0 && first_key < keys.end - s.window);
}

// Masks keys outside of the visible range of the lane's rows.
template <typename Shape>
__device__ __forceinline__ void Mask(const TileThread<Shape>& thread, const TileRows& rows,
                                     int first_key, TileScores<Shape>& scores) {
#pragma unroll
  for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + thread.lane % 4 * 2 + i % 2;
      if (key >= rows.end[i / 2] || key < rows.begin[i / 2]) scores[4 * n + i] = -INFINITY;
    }
  }
}

// A row's maximum (times scale · log2 e) rises only if a score exceeds it by more than this. So
// most blocks of keys need no rescale, and probabilities are at most 2^8, which bfloat16 and the
// float32 sums hold with the same relative precision. FlashAttention-4 rescales in this way.
constexpr float kMaxSlack = 8.0f;

// For each row of the lane, the factor that rescales the sums and weights of earlier blocks.
struct TileRescale {
  float factor[2];
};

// Updates the row maxima `max` by scores · scale (scale > 0), and turns scores into probabilities.
template <typename Shape>
__device__ __forceinline__ TileRescale ToProbabilities(const TileThread<Shape>& thread, float scale,
                                                       char* shared, TileScores<Shape>& scores,
                                                       float (&max)[2]) {
  float tops[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};  // four independent chains
#pragma unroll
  for (int n = 0; n < Shape::kWarpKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) tops[i] = fmaxf(tops[i], scores[4 * n + i]);
  float top[2] = {fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
    top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
  }
  if constexpr (Shape::kShares) {
    float* of_warps = reinterpret_cast<float*>(shared + Shape::kMaxAt);
    if (thread.lane % 4 == 0) {
      for (int i = 0; i < 2; ++i)
        of_warps[thread.column_warp * Shape::kRows + thread.RowOf(i)] = top[i];
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < Shape::kColumnWarps; ++w)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        top[i] = fmaxf(top[i], of_warps[w * Shape::kRows + thread.RowOf(i)]);
  }
  TileRescale rescale;
  float base[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = __fmul_rn(top[i], scale);
    if (!(top[i] > max[i] + kMaxSlack)) top[i] = max[i];
    base[i] = top[i] == -INFINITY ? 0.0f : top[i];
    rescale.factor[i] = ptx::Exp2(__fsub_rn(max[i], base[i]));
    max[i] = top[i];
  }
#pragma unroll
  for (int n = 0; n < Shape::kWarpKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[4 * n + i] = ptx::Exp2(fmaf(scores[4 * n + i], scale, -base[i / 2]));
  return rescale;
}

// Multiplies sums and weights by the factors. Skips this if all factors of the warp are 1.
template <typename Shape>
__device__ __forceinline__ void Apply(const TileRescale& rescale, TileAccumulator<Shape>& part) {
  if (__all_sync(~0u, rescale.factor[0] == 1.0f && rescale.factor[1] == 1.0f)) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) part.weights[i] = __fmul_rn(part.weights[i], rescale.factor[i / 2]);
#pragma unroll
  for (int n = 0; n < Shape::kWarpColumns / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      part.sums[4 * n + i] = __fmul_rn(part.sums[4 * n + i], rescale.factor[i / 2]);
}

// Stores probabilities to shared memory for the warps with other columns of the same rows.
template <typename Shape>
__device__ __forceinline__ void ShareProbabilities(const TileThread<Shape>& thread, char* shared,
                                                   const TileScores<Shape>& p) {
#pragma unroll
  for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t at = SwizzledOffset<Shape::kRows>(
                              thread.RowOf(i), thread.column_warp * (Shape::kWarpKeys / 8) + n) +
                          thread.lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(shared + Shape::kPAt + at) =
          PackBf16(p[4 * n + 2 * i], p[4 * n + 2 * i + 1]);
    }
  }
  __syncthreads();
}

}  // namespace switchyard::cuda
