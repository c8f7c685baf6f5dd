// Fused per-head RMS norm, rotary embedding and KV cache store of the QKV projection's output
// (semantics: kernels/fused_ops.h). One warp per head of a row, 16 heads per block of 512 threads.
#include "kernels/cuda/fused_rows.h"
#include "kernels/cuda/kernel_chain.cuh"
#include "kernels/cuda/ops_norm.cuh"
#include "kernels/cuda/ops_rotate.cuh"

namespace switchyard::cuda::ops {
namespace {

using Warp = RowThreads<false>;  // one head

// Stores a head's row in the cache dtype, with StoreKv's rounding.
template <DType kDType>
__device__ __forceinline__ void StoreHead(const float* head, int64_t slot, int64_t n, void* cache) {
  if (slot < 0) return;
  for (int64_t i = Warp::Rank() * 4; i < n; i += Warp::kSize * 4) {
    const float4 v = LoadRow4<true>(head, i, n);
    if constexpr (kDType == DType::kF32) {
      StoreRow4<true>(static_cast<float*>(cache) + slot * n, i, n, v);
    } else {
      auto* to = static_cast<uint16_t*>(cache) + slot * n + i;
      *reinterpret_cast<uint2*>(to) = kDType == DType::kBF16 ? ToBf16x4(v) : ToF16x4(v);
    }
  }
}

// A warp stages a head in shared memory, where the two elements of a rotation pair are exchanged.
template <DType kDType>
__global__ void __launch_bounds__(kNormThreads)
    NormRopeStoreKvKernel(kernels::NormRopeStoreKvParams p) {
  __shared__ __align__(16) float staged[Warp::kRowsPerBlock][kMaxHeadDim];
  WaitForPriorKernels();
  LaunchDependents();
  const int64_t all = p.heads + 2 * p.kv_heads, at = Warp::Row(), n = p.head_dim;
  const int64_t t = at / all, head = at % all, key = head - p.heads;
  if (t >= p.m) return;
  float* x = p.qkv + at * n;
  const int64_t slot = key < 0 ? -1 : p.slots[t];
  if (key >= p.kv_heads) {
    const int64_t of_cache = slot < 0 ? -1 : slot * p.kv_heads + key - p.kv_heads;
    return StoreHead<kDType>(x, of_cache, n, p.v_cache);
  }

  float* row = staged[threadIdx.x / kWarp];
  const float* norm = key < 0 ? p.q_norm : p.k_norm;
  if (norm != nullptr) {
    const float scale = ScaleOf(RowSquares<Warp, true>(x, n), n, p.eps);
    ScaleRow<Warp, true>(x, scale, norm, row, n);
  } else {
    for (int64_t i = Warp::Rank() * 4; i < n; i += Warp::kSize * 4)
      StoreRow4<true>(row, i, n, LoadRow4<true>(x, i, n));
  }
  __syncwarp();
  const int64_t half = p.rotary_dim / 2;
  if (half > 0) {
    const float* angles = p.cos_sin + p.positions[t] * p.rotary_dim;
    for (int64_t i = Warp::Rank(); i < half; i += Warp::kSize) {
      float* a = p.interleaved ? row + 2 * i : row + i;
      Rotate(a, p.interleaved ? a + 1 : a + half, __ldg(angles + i), __ldg(angles + half + i));
    }
    __syncwarp();
  }
  if (key >= 0) {
    const int64_t of_cache = slot < 0 ? -1 : slot * p.kv_heads + key;
    return StoreHead<kDType>(row, of_cache, n, p.k_cache);
  }
  for (int64_t i = Warp::Rank() * 4; i < n; i += Warp::kSize * 4)
    StoreRow4<true>(x, i, n, LoadRow4<true>(row, i, n));
}

template <DType kDType>
cudaError_t Start(const kernels::NormRopeStoreKvParams& p, const PdlStream& chain) {
  const int64_t rows = p.m * (p.heads + 2 * p.kv_heads);
  return LaunchWithPdl(NormRopeStoreKvKernel<kDType>,
                       dim3(static_cast<unsigned>(CeilDiv(rows, Warp::kRowsPerBlock))),
                       kNormThreads, 0, chain, p);
}

}  // namespace

cudaError_t NormRopeStoreKv(const kernels::NormRopeStoreKvParams& p, const PdlStream& chain) {
  if (p.m == 0) return cudaSuccess;
  if (!NormRopeStoreKvSupports(p.head_dim, p.rotary_dim) ||
      (p.q_norm == nullptr) != (p.k_norm == nullptr))
    return cudaErrorInvalidValue;
  for (const void* at : {static_cast<const void*>(p.qkv), static_cast<const void*>(p.q_norm),
                         static_cast<const void*>(p.k_norm), static_cast<const void*>(p.k_cache),
                         static_cast<const void*>(p.v_cache)})
    if (!Aligned16(at)) return cudaErrorInvalidValue;
  switch (p.kv_dtype) {
    case DType::kF32:
      return Start<DType::kF32>(p, chain);
    case DType::kBF16:
      return Start<DType::kBF16>(p, chain);
    case DType::kF16:
      return Start<DType::kF16>(p, chain);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace switchyard::cuda::ops
