// Epilogue of tensor core attention: stores partial results for the merge kernel, or merges splits
// in place.
#pragma once

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_tile_softmax.cuh"

namespace switchyard::cuda {

// A thread's results of one work item.
template <typename Shape>
class TileEpilogue {
 public:
  using Part = TileAccumulator<Shape>;

  __device__ TileEpilogue(const TiledAttention& p, const AttentionWorkItem& unit,
                          const TileKeys& keys, const TileThread<Shape>& thread,
                          const TileRows& rows)
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
      float factor[2];
      Merge(part, first, last, factor);
      if (last) StoreTotals(factor);
    } else {
      MergeIntoOutput(part, first, last);
    }
  }
  // Merges the next split into registers. After the last one, results are the totals times `factor`
  // of the lane's two rows.
  __device__ void Merge(const Part& part, bool first, bool last, float (&factor)[2]) {
    MergeFactors f[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) f[i] = MergeState(part, i, last, &factor[i]);
#pragma unroll
    for (int n = 0; n < kTotals; ++n)
      sums_[n] = MergeSoftmax(f[n % 4 / 2], first ? 0.0f : sums_[n], part.sums[n]);
  }
  // Two adjacent elements of the lane's row i, of columns [8n, 8n + 8) of the head.
  __device__ float2 Result(int n, int i, const float (&factor)[2]) const {
    return {__fmul_rn(sums_[4 * n + 2 * i], factor[i]),
            __fmul_rn(sums_[4 * n + 2 * i + 1], factor[i])};
  }
  __device__ void StoreTotals(const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!IsRow(i)) continue;
      float2* out = reinterpret_cast<float2*>(p_.launch.out + rows_.out[i]);
      uint32_t* rounded = reinterpret_cast<uint32_t*>(p_.launch.bf16_out + rows_.out[i]);
#pragma unroll
      for (int n = 0; n < kTotals / 4; ++n) {
        const float2 y = Result(n, i, factor);
        if (p_.launch.bf16_out) {
          rounded[4 * n] = PackBf16(y.x, y.y);
        } else {
          out[4 * n] = y;
        }
      }
    }
  }

 private:
  // Running sums over the splits, kept in registers if they fit.
  static constexpr int kTotals =
      Shape::kWarpColumns <= (Shape::kHopper ? 128 : 32) ? Shape::kWarpColumns / 2 : 0;

  __device__ bool IsRow(int i) const { return keys_.begin_row + thread_.RowOf(i) < keys_.end_row; }

  // Updates the softmax state of this lane's row i. Returns the factors of the previous sums and of
  // the part. Sets `factor` to the final factor after the last part, else to 1.
  __device__ MergeFactors MergeState(const Part& part, int i, bool last, float* factor) {
    const MergeFactors f =
        MergeSoftmax(total_[i], {.max = part.max[i], .sum = part.weights[2 * i]});
    const float* sinks = p_.launch.sinks;
    *factor = last ? FinalFactor(total_[i], sinks ? sinks + rows_.head[i] : nullptr) : 1.0f;
    return f;
  }

  // Merges the split into `out`, which holds the merged result of the earlier splits.
  __device__ void MergeIntoOutput(const Part& part, bool first, bool last) {
    constexpr int kCount = Shape::kWarpColumns / 8, kInFlight = kCount < 16 ? kCount : 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float factor;
      const MergeFactors f = MergeState(part, i, last, &factor);
      if (!IsRow(i)) continue;
      float2* out = reinterpret_cast<float2*>(p_.launch.out + rows_.out[i]);
#pragma unroll
      for (int begin = 0; begin < kCount; begin += kInFlight) {
        float2 before[kInFlight] = {};
        if (!first) {
#pragma unroll
          for (int n = 0; n < kInFlight; ++n) before[n] = out[4 * (begin + n)];
        }
#pragma unroll
        for (int n = 0; n < kInFlight; ++n) {
          const float* from = part.sums + 4 * (begin + n) + 2 * i;
          out[4 * (begin + n)] = {__fmul_rn(MergeSoftmax(f, before[n].x, from[0]), factor),
                                  __fmul_rn(MergeSoftmax(f, before[n].y, from[1]), factor)};
        }
      }
    }
  }

  const TiledAttention& p_;
  const AttentionWorkItem& unit_;
  const TileKeys& keys_;
  const TileThread<Shape>& thread_;
  const TileRows& rows_;
  SoftmaxState total_[2];
  float sums_[kTotals > 0 ? kTotals : 1];
};

}  // namespace switchyard::cuda
