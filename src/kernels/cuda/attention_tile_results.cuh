// Epilogue of tensor core attention: stores partial results for the merge kernel, or merges splits
// in place.
#pragma once

#include "kernels/cuda/attention_fold.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_tile_softmax.cuh"

namespace switchyard::cuda {

// A thread's results of one work item.
template <typename Shape>
class TileResults {
 public:
  using Part = TilePart<Shape>;

  __device__ TileResults(const TiledAttention& p, const AttentionUnit& unit, const TileKeys& keys,
                         const TileThread<Shape>& thread, const TileRows& rows)
      : p_(p), unit_(unit), keys_(keys), thread_(thread), rows_(rows) {}

  // Stores the work item's split in its scratch slot.
  __device__ void Store(const Part& part) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!IsRow(i)) continue;
      const int64_t row = int64_t{unit_.slot} * Shape::kRows + thread_.RowOf(i);
      if (thread_.column_warp == 0 && thread_.lane % 4 == 0)
        p_.states[row] = {part.max[i], part.weights[2 * i]};
      float* to = p_.parts + row * Shape::kVDim + thread_.column_warp * Shape::kWarpColumns +
                  thread_.lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < Shape::kWarpColumns / 8; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = {part.sums[4 * n + 2 * i],
                                                  part.sums[4 * n + 2 * i + 1]};
    }
  }

  // Merges the next split when one block processes all splits of the tile; the last one completes
  // `out`.
  __device__ void Add(const Part& part, bool first, bool last) {
    if constexpr (kTotals > 0) {
      FoldIntoRegisters(part, first, last);
    } else {
      FoldIntoOut(part, first, last);
    }
  }

 private:
  // Running sums over the splits, kept in registers if they fit.
  static constexpr int kTotals =
      Shape::kHopper && Shape::kWarpColumns <= 128 ? Shape::kWarpColumns / 2 : 0;

  __device__ bool IsRow(int i) const { return keys_.begin_row + thread_.RowOf(i) < keys_.end_row; }

  // Updates the softmax state of this lane's row i. Returns the factors of the previous sums and of
  // the part, and in `factor` the final factor.
  __device__ FoldFactors FoldState(const Part& part, int i, bool last, float* factor) {
    const FoldFactors f = Fold(total_[i], {.max = part.max[i], .sum = part.weights[2 * i]});
    const float* sinks = p_.launch.sinks;
    *factor = last ? FinalFactor(total_[i], sinks ? sinks + rows_.head[i] : nullptr) : 1.0f;
    return f;
  }

  // `out` holds the merged result of the splits so far.
  __device__ void FoldIntoOut(const Part& part, bool first, bool last) {
    constexpr int kCount = Shape::kWarpColumns / 8, kAtOnce = kCount < 16 ? kCount : 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float factor;
      const FoldFactors f = FoldState(part, i, last, &factor);
      if (!IsRow(i)) continue;
      float2* out = reinterpret_cast<float2*>(rows_.out[i]);
#pragma unroll
      for (int begin = 0; begin < kCount; begin += kAtOnce) {
        float2 before[kAtOnce] = {};
        if (!first) {
#pragma unroll
          for (int n = 0; n < kAtOnce; ++n) before[n] = out[4 * (begin + n)];
        }
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          const float* from = part.sums + 4 * (begin + n) + 2 * i;
          out[4 * (begin + n)] = {__fmul_rn(Fold(f, before[n].x, from[0]), factor),
                                  __fmul_rn(Fold(f, before[n].y, from[1]), factor)};
        }
      }
    }
  }

  __device__ void FoldIntoRegisters(const Part& part, bool first, bool last) {
    float factor[2];
    FoldFactors f[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) f[i] = FoldState(part, i, last, &factor[i]);
#pragma unroll
    for (int n = 0; n < kTotals; ++n)
      sums_[n] = Fold(f[n % 4 / 2], first ? 0.0f : sums_[n], part.sums[n]);
    if (!last) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!IsRow(i)) continue;
      float2* out = reinterpret_cast<float2*>(rows_.out[i]);
#pragma unroll
      for (int n = 0; n < kTotals / 4; ++n)
        out[4 * n] = {__fmul_rn(sums_[4 * n + 2 * i], factor[i]),
                      __fmul_rn(sums_[4 * n + 2 * i + 1], factor[i])};
    }
  }

  const TiledAttention& p_;
  const AttentionUnit& unit_;
  const TileKeys& keys_;
  const TileThread<Shape>& thread_;
  const TileRows& rows_;
  SoftmaxState total_[2];
  float sums_[kTotals > 0 ? kTotals : 1];
};

}  // namespace switchyard::cuda
