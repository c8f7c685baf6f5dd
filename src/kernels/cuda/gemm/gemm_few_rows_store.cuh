// Epilogue of the few-rows GEMM: sums have weights along rows, D has them along columns.
#pragma once

#include "kernels/cuda/gemm/gemm_few_rows_tiles.cuh"

namespace switchyard::cuda::few_rows {

// Stores a warp's 16 output columns from `column` on; layout of `sums`: gemm_few_rows_multiply.cuh.
template <int kTokens>
__device__ __forceinline__ void StoreFloats(const Kernel& p, const Tile& tile, int column, int lane,
                                            const float (&sums)[kTokens / 2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int c = column + lane / 4 + i / 2 * 8;
    if (c >= p.n) continue;
    auto* d = static_cast<float*>(p.d) + tile.row * p.ldd + c;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = 8 * j + 2 * (lane % 4) + i % 2;
      if (token >= tile.tokens) break;
      float* to = d + token * p.ldd;
      *to = p.accumulate ? __fadd_rn(*to, sums[4 * j + i]) : sums[4 * j + i];
    }
  }
}

// Transposes through shared memory, 16 tokens × 16 columns at a time.
template <int kTokens>
__device__ __forceinline__ void StoreBf16(const Kernel& p, const Tile& tile, int column, int lane,
                                          uint8_t* staged, const float (&sums)[kTokens / 2]) {
  const int c = column + lane % 2 * 8;
  uint8_t* matrix = staged + (lane / 16 * 8 + lane % 8) * kStagedRowBytes + lane / 8 % 2 * 16;
  auto* d = static_cast<__nv_bfloat16*>(p.d) + tile.row * p.ldd + c;
#pragma unroll
  for (int token = 0; token < kTokens; token += 16) {
    const float* x = &sums[token / 2];
    __syncwarp();
    ptx::StoreMatricesTransposed(matrix, Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]),
                                 Pack(x[6], x[7]));
    __syncwarp();
    const int t = token + lane / 2;
    if (t < tile.tokens && c < p.n)
      *reinterpret_cast<uint4*>(d + t * p.ldd) =
          *reinterpret_cast<const uint4*>(staged + lane / 2 * kStagedRowBytes + lane % 2 * 16);
  }
}

}  // namespace switchyard::cuda::few_rows
