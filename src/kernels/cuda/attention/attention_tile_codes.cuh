// Products of attention tiles with e4m3 codes, which lanes convert to bfloat16 in registers
// (TileShape::kDirect). The bits are those of Score and AccumulateValues on the converted codes.
#pragma once

#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/attention/attention_tile_softmax.cuh"

namespace switchyard::cuda {

// scores = q · kᵀ for this warp's rows and keys. `codes`: those of the stage.
template <typename Shape>
__device__ __forceinline__ void ScoreCodes(const TileThread<Shape>& thread, uint32_t shared,
                                           const char* codes, TileScores<Shape>& scores) {
#pragma unroll
  for (float& score : scores) score = 0.0f;
  const int key0 = thread.FirstKey() + thread.lane / 4, column = thread.lane % 4 * 2;
#pragma unroll 4
  for (int k = 0; k < Shape::kQkDim / 16; ++k) {
    uint32_t q[4];
    ptx::LoadMatrices(q, shared + SwizzledOffset<Shape::kRows>(thread.row0 + thread.lane % 16,
                                                               2 * k + thread.lane / 16));
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
      const char* const at = codes + SwizzledCodes<Shape::kQkDim>(key0 + 8 * n, k) + column;
      const uint32_t low = *reinterpret_cast<const uint16_t*>(at);
      const uint32_t high = *reinterpret_cast<const uint16_t*>(at + 8);
      ptx::MmaBf16(scores + 4 * n, q, Bf16OfCodePair(__byte_perm(low, 0, 0x1404)),
                   Bf16OfCodePair(__byte_perm(high, 0, 0x1404)));
    }
  }
}

// sums += p · v and weights += p · 1 for all keys of the block. A lane loads codes of two adjacent
// columns. So of each 16 columns, one product has the even ones and the other the odd ones
// (OrderColumns).
template <typename Shape>
__device__ __forceinline__ void AccumulateCodes(const TileThread<Shape>& thread, uint32_t codes,
                                                const uint32_t (&p)[Shape::kKeys / 16][4],
                                                float (&sums)[Shape::kWarpColumns / 2],
                                                float (&weights)[4]) {
  constexpr int kWidth = Shape::kLatent ? Shape::kQkDim : Shape::kVDim;
  constexpr int kPieces = Shape::kWarpColumns / 16;
  const uint32_t values = codes + (Shape::kLatent ? 0 : Shape::kKeys * Shape::kQkDim);
#pragma unroll
  for (int k = 0; k < Shape::kKeys / 16; ++k) ptx::MmaBf16(weights, p[k], kBf16Ones, kBf16Ones);
#pragma unroll
  for (int k = 0; k < Shape::kKeys / 16; k += 2) {
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      uint32_t v[4];  // 32 keys × 16 columns
      ptx::LoadMatricesTransposed(
          v,
          values + SwizzledCodes<kWidth>(16 * k + thread.lane, thread.column_warp * kPieces + n));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::MmaBf16(sums + 8 * n, p[k + i], Bf16OfCodePair(v[2 * i] << 8),
                     Bf16OfCodePair(v[2 * i + 1] << 8));
        ptx::MmaBf16(sums + 8 * n + 4, p[k + i], Bf16OfCodePair(v[2 * i]),
                     Bf16OfCodePair(v[2 * i + 1]));
      }
    }
  }
}

// Exchanges the sums of AccumulateCodes between lanes, so that columns have mma.sync's order.
template <typename Shape>
__device__ __forceinline__ void OrderColumns(const TileThread<Shape>& thread,
                                             float (&sums)[Shape::kWarpColumns / 2]) {
  // The lanes that have this lane's columns in the first and in the last 8 of 16 columns.
  const int first = (thread.lane & ~3) | (thread.lane >> 1 & 1), last = first | 2;
  const bool upper = thread.lane % 2 != 0;  // the last two of a lane's four columns
#pragma unroll
  for (int n = 0; n < Shape::kWarpColumns / 16; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const even = sums + 8 * n + 2 * i;
      float* const odd = even + 4;
      const float of_lane[4] = {even[0], odd[0], even[1], odd[1]};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = __shfl_sync(~0u, of_lane[j], first);
        const float b = __shfl_sync(~0u, of_lane[2 + j], first);
        const float c = __shfl_sync(~0u, of_lane[j], last);
        const float d = __shfl_sync(~0u, of_lane[2 + j], last);
        even[j] = upper ? b : a;
        odd[j] = upper ? d : c;
      }
    }
  }
}

}  // namespace switchyard::cuda
