// The gated delta rule over chunks of kDeltaChunk rows (kernels/recurrent.h), with the products of
// a chunk on tensor cores. Source: Yang, Kautz and Hatamizadeh (arXiv 2412.06464, section 3.3),
// after Yang et al. (arXiv 2406.06484, section 3). With r_ij the product of the decays of rows j +
// 1 to i of a chunk, r_i that of rows 0 to i, and S the state before the chunk:
//
//   A_ij = β_i r_ij (k_i · k_j) for j < i
//   T = (I + A)⁻¹ diag(β)
//   P_ij = r_ij (q_i · k_j) for j ≤ i
//   U = T (V − diag(r_i) K S)
//   O = diag(r_i) Q S + P U
//   S ← r_last S + Kᵀ diag(r_last,i) U
//
// delta_chunk_matrices.cu computes T, P and the factors of all chunks at once, delta_chunk_rows.cu
// the rows and states of one chunk after another. The order of additions depends on neither the
// number of chunks nor on columns or sequences. Precision: split_products.cuh; states, sums, decays
// and the inverse are float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/recurrent/split_products.cuh"
#include "kernels/recurrent.h"

namespace switchyard::cuda::ops {

// Starts the kernels. `aligned`: 16-byte copies of q and k are possible.
cudaError_t StartChunkMatrices(const kernels::GatedDeltaParams& p, bool aligned,
                               const PdlStream& chain);
cudaError_t StartChunkRows(const kernels::GatedDeltaParams& p, bool aligned,
                           const PdlStream& chain);

namespace delta {

using kernels::GatedDeltaParams;

constexpr int kChunk = kernels::kDeltaChunk;
constexpr int kKeys = static_cast<int>(kernels::kMaxChunkKeyDim);
constexpr int kTiles = kChunk / 8;    // of rows, as right operands
constexpr int kBlocks = kChunk / 16;  // of rows, as dimension of sums
static_assert(kChunk == 64 && kKeys == 128);

// T and P of a row and head, and its two factors: r_i and r_last,i.
struct Scratch {
  __device__ explicit Scratch(const GatedDeltaParams& p) : p(p) {}
  __device__ float* Matrices(int64_t row, int64_t head) const {
    return p.chunk_scratch + (row * p.value_heads + head) * 2 * kChunk;
  }
  __device__ float* Factors(int64_t row, int64_t head) const {
    return p.chunk_scratch + p.m * p.value_heads * 2 * kChunk + (row * p.value_heads + head) * 2;
  }
  const GatedDeltaParams& p;
};

// Starts copies of a chunk's rows of q or k, by `count` threads. Columns after key_dim are left.
template <bool kAligned>
__device__ __forceinline__ void CopyKeys(const GatedDeltaParams& p, const float* from, float* to,
                                         int thread, int count) {
  for (int i = thread; i < kChunk * (kKeys / 4); i += count) {
    const int row = i / (kKeys / 4), key = i % (kKeys / 4) * 4;
    CopyFour<kAligned>(to + Swizzled<kKeys>(row, key), from + row * p.ld + key, p.key_dim - key);
  }
}
__device__ __forceinline__ void ClearKeys(const GatedDeltaParams& p, float* to, int thread,
                                          int count) {
  if (p.key_dim == kKeys) return;
  for (int i = thread; i < kChunk * kKeys; i += count)
    if (i % kKeys >= p.key_dim) to[Swizzled<kKeys>(i / kKeys, i % kKeys)] = 0.0f;
}

// Two adjacent columns, from an even one on.
template <int kWidth>
__device__ __forceinline__ SplitPair RowPair(const float* matrix, int row, int column) {
  const float2 x = *reinterpret_cast<const float2*>(matrix + Swizzled<kWidth>(row, column));
  return Split(x.x, x.y);
}

}  // namespace delta
}  // namespace switchyard::cuda::ops
