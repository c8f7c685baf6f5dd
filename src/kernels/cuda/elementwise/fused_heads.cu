// Problem: per-head RMS norm, rotary embedding and KV cache store of the QKV projection's output
// [tokens, heads of q, k and v] (semantics: kernels/fused_ops.h; RMSNorm: Zhang and Sennrich 2019,
// rotary embedding: Su et al. 2021).
// Tiling: a one-dimensional grid over the warps of all tokens. Two kernels with the same bits:
//   WholeHeadsKernel       heads of 64 or 128 that are rotated whole, not interleaved: a lane has
//                          four elements in registers, a warp several heads at a time
//   NormRopeStoreKvKernel  any head: one warp per head, which is staged in shared memory
// Pipeline: none; launched early (kernel_chain.cuh).
// Measured on one H200, Qwen3-30B-A3B in bfloat16: 3.1 µs with one token, 85 µs with 8192.
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_norm.cuh"
#include "kernels/cuda/elementwise/ops_rotate.cuh"
#include "kernels/cuda/elementwise/ops_rows.h"
#include "kernels/cuda/elementwise/store_codes.cuh"

namespace switchyard::cuda::ops {
namespace {

using Warp = RowThreads<false>;  // the threads of one head

// Stores four elements at element `at` of a cache, with StoreKv's rounding. `scale`: of codes.
template <DType kDType>
__device__ __forceinline__ void StoreFour(float4 v, float scale, int64_t at, void* cache) {
  if constexpr (kDType == DType::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(cache) + at) = v;
  } else if constexpr (kDType == DType::kF8E4M3) {
    *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(cache) + at) = CodesOf(v, scale);
  } else {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(cache) + at) =
        kDType == DType::kBF16 ? ToBf16x4(v) : ToF16x4(v);
  }
}

// The scale of a key or value head; 1 without codes.
template <DType kDType>
__device__ __forceinline__ float ScaleOfHead(const float* scales, int64_t head) {
  if constexpr (kDType != DType::kF8E4M3) return 1.0f;
  return scales != nullptr ? scales[head] : 1.0f;
}

// Stores head `head` of a slot's row.
template <DType kDType>
__device__ __forceinline__ void StoreHead(const kernels::NormRopeStoreKvParams& p, const float* x,
                                          int64_t slot, int64_t head, const float* scales,
                                          void* cache) {
  if (slot < 0) return;
  const int64_t n = p.head_dim, begin = (slot * p.kv_heads + head) * n;
  const float scale = ScaleOfHead<kDType>(scales, head);
  for (int64_t i = Warp::Rank() * 4; i < n; i += Warp::kSize * 4)
    StoreFour<kDType>(LoadRow4<true>(x, i, n), scale, begin + i, cache);
}

// A warp stages a head in shared memory, where the two elements of a rotation pair are exchanged.
template <DType kDType>
__global__ void __launch_bounds__(kNormThreads)
    NormRopeStoreKvKernel(kernels::NormRopeStoreKvParams p) {
  __shared__ __align__(16) float staged[Warp::kRowsPerBlock][kMaxHeadDim];
  LaunchDependentsAndWait();
  const int64_t all = p.heads + 2 * p.kv_heads, at = Warp::Row(), n = p.head_dim;
  const int64_t t = at / all, head = at % all, key = head - p.heads;
  if (t >= p.m) return;
  float* x = p.qkv + at * n;
  const int64_t slot = key < 0 ? -1 : p.slots[t];
  if (key >= p.kv_heads)
    return StoreHead<kDType>(p, x, slot, key - p.kv_heads, p.v_scales, p.v_cache);

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
  if (key >= 0) return StoreHead<kDType>(p, row, slot, key, p.k_scales, p.k_cache);
  for (int64_t i = Warp::Rank() * 4; i < n; i += Warp::kSize * 4) {
    const float4 y = LoadRow4<true>(row, i, n);
    if (p.bf16_queries) {
      reinterpret_cast<uint2*>(x)[i / 4] = ToBf16x4(y);
    } else {
      StoreRow4<true>(x, i, n, y);
    }
  }
}

// The sum over kLanes lanes of four squares each, in the order of WarpSum.
template <int kLanes>
__device__ __forceinline__ double LaneSum(double value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

constexpr int kHeadThreads = 256;

// A warp processes kAtOnce steps of 128 elements of a token's heads, and issues the loads of all
// steps first. It computes the scales of its heads in parallel lanes, because 1 / sqrt in double
// takes as many instructions as everything else. Rotated pairs are kLanes / 2 lanes apart.
template <DType kDType, int kDim, int kAtOnce>
__global__ void __launch_bounds__(kHeadThreads)
    WholeHeadsKernel(const kernels::NormRopeStoreKvParams p) {
  constexpr int kLanes = kDim / 4, kHeads = kWarp / kLanes;
  constexpr bool kFew = kAtOnce == 1;
  LaunchDependents();
  if constexpr (!kFew) WaitForPriorKernels();
  const int all = static_cast<int>(p.heads + 2 * p.kv_heads);
  const int turned = static_cast<int>(p.heads + p.kv_heads);  // heads with norm and rotation
  const unsigned warps = (all + kHeads * kAtOnce - 1) / (kHeads * kAtOnce);  // warps per token
  const unsigned warp = (blockIdx.x * kHeadThreads + threadIdx.x) / kWarp;
  const unsigned token = warp / warps, last = static_cast<unsigned>(p.m) - 1;
  const int lane = threadIdx.x % kWarp, in_head = lane % kLanes;
  const int first = static_cast<int>(warp % warps) * kHeads * kAtOnce + lane / kLanes;
  float* const row = p.qkv + int64_t{min(token, last)} * all * kDim + in_head * 4;
  float4 x[kAtOnce];
  const auto load = [&] {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int head = first + j * kHeads;
      x[j] = head < all ? *reinterpret_cast<const float4*>(row + head * kDim) : float4{};
    }
  };
  if constexpr (!kFew) {
    if (token > last) return;
    load();
  }
  // These loads read only weights and what the host uploaded. So with few tokens they precede
  // WaitForPriorKernels.
  const int64_t slot = p.slots[min(token, last)];
  const int64_t position = p.positions[min(token, last)];
  const float* angles = p.cos_sin + position * kDim + in_head * 4 % (kDim / 2);
  const float4 cosine = __ldg(reinterpret_cast<const float4*>(angles));
  const float4 sine = __ldg(reinterpret_cast<const float4*>(angles + kDim / 2));
  float4 q_norm = {}, k_norm = {};
  if (p.q_norm != nullptr) {
    q_norm = __ldg(reinterpret_cast<const float4*>(p.q_norm + in_head * 4));
    k_norm = __ldg(reinterpret_cast<const float4*>(p.k_norm + in_head * 4));
  }
  if constexpr (kFew) {
    WaitForPriorKernels();
    if (token > last) return;
    load();
  }
  float scale[kAtOnce];
  if (p.q_norm != nullptr) {
    double own = 0;  // scale of head in_head % kAtOnce
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const double squares = LaneSum<kLanes>(SquaresOf(x[j]));
      if (in_head % kAtOnce == j) own = squares;
    }
    const float own_scale = ScaleOf(own, kDim, p.eps);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) scale[j] = __shfl_sync(~0u, own_scale, j, kLanes);
  }
  const bool low = in_head < kLanes / 2;
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    const int head = first + j * kHeads, key = head - static_cast<int>(p.heads);
    float4 y = x[j];
    if (p.q_norm != nullptr) y = Scaled(y, scale[j], key < 0 ? q_norm : k_norm);
    float4 other;
    other.x = __shfl_xor_sync(~0u, y.x, kLanes / 2);
    other.y = __shfl_xor_sync(~0u, y.y, kLanes / 2);
    other.z = __shfl_xor_sync(~0u, y.z, kLanes / 2);
    other.w = __shfl_xor_sync(~0u, y.w, kLanes / 2);
    const auto rotate = [&](float mine, float partner, float c, float s) {
      float a = low ? mine : partner, b = low ? partner : mine;
      Rotate(&a, &b, c, s);
      return low ? a : b;
    };
    y = {rotate(y.x, other.x, cosine.x, sine.x), rotate(y.y, other.y, cosine.y, sine.y),
         rotate(y.z, other.z, cosine.z, sine.z), rotate(y.w, other.w, cosine.w, sine.w)};
    if (head >= all) continue;
    if (key < 0 && p.bf16_queries) {
      reinterpret_cast<uint2*>(p.qkv + (int64_t{token} * all + head) * kDim)[in_head] = ToBf16x4(y);
    } else if (key < 0) {
      *reinterpret_cast<float4*>(row + head * kDim) = y;
    } else if (slot >= 0) {
      const bool is_key = head < turned;
      const int of_kind = is_key ? key : head - turned;
      const float scale = ScaleOfHead<kDType>(is_key ? p.k_scales : p.v_scales, of_kind);
      StoreFour<kDType>(is_key ? y : x[j], scale,
                        (slot * p.kv_heads + of_kind) * kDim + in_head * 4,
                        is_key ? p.k_cache : p.v_cache);
    }
  }
}

template <DType kDType, int kDim>
cudaError_t StartWholeHeads(const kernels::NormRopeStoreKvParams& p, const PdlStream& chain) {
  // Many tokens: kMany steps per warp, which saves instructions. Few tokens: one step per warp,
  // because otherwise there are too few warps to fill the GPU.
  constexpr int kMany = 5, kHeads = kWarp * 4 / kDim;
  constexpr int64_t kFewHeads = int64_t{132} * 64;
  const int64_t all = p.heads + 2 * p.kv_heads;
  const bool many = p.m * all > kFewHeads * kHeads;
  const int64_t warps = p.m * CeilDiv(all, many ? kHeads * kMany : kHeads);
  return LaunchWithPdl(
      many ? WholeHeadsKernel<kDType, kDim, kMany> : WholeHeadsKernel<kDType, kDim, 1>,
      dim3(static_cast<unsigned>(CeilDiv(warps, kHeadThreads / kWarp))), kHeadThreads, 0, chain, p);
}

template <DType kDType>
cudaError_t Start(const kernels::NormRopeStoreKvParams& p, const PdlStream& chain) {
  const bool whole = p.rotary_dim == p.head_dim && !p.interleaved && Aligned16(p.cos_sin) &&
                     p.m * (p.heads + 2 * p.kv_heads) < INT32_MAX / kWarp;
  if (whole && p.head_dim == 64) return StartWholeHeads<kDType, 64>(p, chain);
  if (whole && p.head_dim == 128) return StartWholeHeads<kDType, 128>(p, chain);
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
    case DType::kF8E4M3:
      return Start<DType::kF8E4M3>(p, chain);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace switchyard::cuda::ops
