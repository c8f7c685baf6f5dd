// Arithmetic of the attention tiles: products with mma.sync and wgmma, online softmax per block of
// keys, and the epilogue.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace switchyard::cuda {

// Matrix products of the attention tiles, with mma.sync and with wgmma.

constexpr uint32_t kBf16Ones = 0x3f803f80;

// A thread's fragment of 16 rows × kWarpKeys keys, in groups of eight keys with mma.sync's
// accumulator layout.
template <typename Shape>
using TileScores = float[Shape::kWarpKeys / 2];

// scores = q · kᵀ for this warp's rows and keys.
template <typename Shape>
__device__ __forceinline__ void Score(const TileThread<Shape>& thread, uint32_t shared,
                                      uint32_t stage, TileScores<Shape>& scores) {
#pragma unroll
  for (float& score : scores) score = 0.0f;
  const int key0 = thread.FirstKey();
#pragma unroll(Shape::kQkDim > 128 && Shape::kWarpKeys > 8 ? 2 : 6)
  for (int k = 0; k < Shape::kQkDim / 16; k += 2) {
    uint32_t q[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      ptx::LoadMatrices(q[i],
                        shared + SwizzledOffset<Shape::kRows>(thread.row0 + thread.lane % 16,
                                                              2 * (k + i) + thread.lane / 16));
    constexpr int kInFlight = Shape::kWarpKeys / 8 < 4 ? Shape::kWarpKeys / 8 : 4;
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; n += kInFlight) {
      uint32_t keys[kInFlight][4];  // 8 keys × 32 columns
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        ptx::LoadMatrices(keys[i],
                          stage + SwizzledOffset<Shape::kKeys>(key0 + 8 * (n + i) + thread.lane % 8,
                                                               2 * k + thread.lane / 8));
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        ptx::MmaBf16(scores + 4 * (n + i), q[0], keys[i][0], keys[i][1]);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        ptx::MmaBf16(scores + 4 * (n + i), q[1], keys[i][2], keys[i][3]);
    }
  }
}

// sums += p · v and weights += p · 1 for keys [16 · k, 16 · k + 16).
template <typename Shape>
__device__ __forceinline__ void AccumulateValues(const TileThread<Shape>& thread, uint32_t stage,
                                                 int k, const uint32_t (&p)[4],
                                                 float (&sums)[Shape::kWarpColumns / 2],
                                                 float (&weights)[4]) {
  const uint32_t values = stage + (Shape::kLatent ? 0 : Shape::kKBytes);
  const int piece0 = thread.column_warp * (Shape::kWarpColumns / 8) + thread.lane / 16;
  ptx::MmaBf16(weights, p, kBf16Ones, kBf16Ones);
#pragma unroll
  for (int n = 0; n < Shape::kWarpColumns / 8; n += 2) {
    uint32_t v[4];  // 16 keys × 16 columns
    ptx::LoadMatricesTransposed(
        v, values + SwizzledOffset<Shape::kKeys>(16 * k + thread.lane % 16, piece0 + n));
    ptx::MmaBf16(sums + 4 * n, p, v[0], v[1]);
    ptx::MmaBf16(sums + 4 * n + 4, p, v[2], v[3]);
  }
}

// wgmma descriptor of a K-major panel: the reduction runs along the rows of the panel.
__device__ __forceinline__ uint64_t PanelDescriptor(uint32_t panel) {
  return uint64_t{panel >> 4 & 0x3fff} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
// wgmma descriptor of MN-major panels of kPanelBytes each: the reduction runs down the columns of
// the panels.
template <int kPanelBytes>
__device__ __forceinline__ uint64_t ColumnsDescriptor(uint32_t panel) {
  return uint64_t{panel >> 4 & 0x3fff} | uint64_t{kPanelBytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// wgmma descriptor of consecutive 8 × 8 blocks of ones, whose order does not matter.
__device__ __forceinline__ uint64_t OnesDescriptor(uint32_t blocks) {
  return uint64_t{blocks >> 4 & 0x3fff} | uint64_t{128 >> 4} << 16 | uint64_t{128 >> 4} << 32;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Starts q · kᵀ with wgmma, for all keys of the warpgroup's rows, as a separate wgmma group.
template <typename Shape>
__device__ __forceinline__ void EnqueueScores(const TileThread<Shape>& thread, uint32_t queries,
                                              uint32_t stage, TileScores<Shape>& scores) {
  const uint64_t q = PanelDescriptor(queries + thread.row0 / 64 * 64 * 128);
  const uint64_t k = PanelDescriptor(stage);
#pragma unroll
  for (int i = 0; i < Shape::kQkDim / 16; ++i) {
    const int q_at = i / 4 * (Shape::kRows * 128) + i % 4 * 32;
    const int k_at = i / 4 * (Shape::kKeys * 128) + i % 4 * 32;
    ptx::WgmmaBf16(scores, q + (q_at >> 4), k + (k_at >> 4), i > 0);
  }
  ptx::WgmmaCommit();
}

// Starts sums += p · v and weights += p · 1 with wgmma, as a separate wgmma group. `ones_at`:
// shared memory that is filled with ones.
template <typename Shape>
__device__ __forceinline__ void EnqueueValues(const TileThread<Shape>& thread, uint32_t ones_at,
                                              uint32_t stage,
                                              const uint32_t (&p)[Shape::kKeys / 16][4],
                                              float (&sums)[Shape::kWarpColumns / 2],
                                              float (&weights)[4]) {
  const uint64_t v = ColumnsDescriptor<Shape::kKeys * 128>(
      stage + (Shape::kLatent ? 0 : Shape::kKBytes) +
      thread.column_warp * (Shape::kWarpColumns / 64 * Shape::kKeys * 128));
  const uint64_t ones = OnesDescriptor(ones_at);
#pragma unroll
  for (int k = 0; k < Shape::kKeys / 16; ++k) {
    ptx::WgmmaBf16MnMajor(sums, p[k], v + (k * 16 * 128 >> 4), true);
    ptx::WgmmaBf16MnMajor(weights, p[k], ones, true);
  }
  ptx::WgmmaCommit();
}
#endif

// scores = q · kᵀ with wgmma, for all keys of the warpgroup's rows. meanwhile() runs concurrently
// and must not branch.
template <typename Shape>
__device__ __forceinline__ void ScoreByWarpgroup(const TileThread<Shape>& thread, uint32_t shared,
                                                 uint32_t stage, const auto& meanwhile,
                                                 TileScores<Shape>& scores) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::WgmmaFence();
  EnqueueScores(thread, shared, stage, scores);
  meanwhile();
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(scores);
#endif
}

// sums += p · v and weights += p · 1 with wgmma, for all keys of the block. `ones_at`: shared
// memory that is filled with ones.
template <typename Shape>
__device__ __forceinline__ void AddValuesByWarpgroup(const TileThread<Shape>& thread,
                                                     uint32_t ones_at, uint32_t stage,
                                                     const uint32_t (&p)[Shape::kKeys / 16][4],
                                                     float (&sums)[Shape::kWarpColumns / 2],
                                                     float (&weights)[4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::PinRegisters(sums);
  ptx::PinRegisters(weights);
  ptx::WgmmaFence();
  EnqueueValues(thread, ones_at, stage, p, sums, weights);
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(sums);
  ptx::PinRegisters(weights);
#endif
}

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
    rows.begin[i] = p.schedule.FirstKeyOf(rows.end[i] - 1);
    rows.head[i] = unit.kv_head * group + flat - row * group;
    rows.out[i] = int64_t{row_begin + row} * p.launch.ldo + int64_t{rows.head[i]} * Shape::kVDim +
                  thread.column_warp * Shape::kWarpColumns + thread.lane % 4 * 2;
  }
  return rows;
}

// Whether a key of the block is masked for a row of the tile. First keys do not decrease from row
// to row. So the first row decides about later keys, and the last row about earlier ones. A chunk
// may begin within a block: then even a tile of one row masks keys before the chunk.
template <typename Shape>
__device__ __forceinline__ bool BlockHasMaskedKeys(const AttentionSchedule& s, const TileKeys& keys,
                                                   int block) {
  const int first_key = block * Shape::kKeys;
  return first_key + Shape::kKeys > keys.first_position + 1 ||
         first_key < s.FirstKeyOf(keys.end - 1);
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

// Epilogue of tensor core attention: stores partial results for the merge kernel, or merges splits
// in place.

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
    *factor = last ? FinalFactor(total_[i], sinks ? sinks + rows_.head[i] : nullptr,
                                 ValueScale<Shape::kCodes>(p_.launch, unit_.kv_head))
                   : 1.0f;
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
