// Problem: norm and gate of each head of a row (kernels/recurrent.h, GatedNormParams), in place.
// Tiling: a warp takes one row and head. It reads them twice, since a head may be longer than its
// registers. Pipeline: none; launched early (kernel_chain.cuh). Measured: not measured yet.
#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_norm.cuh"
#include "kernels/cuda/recurrent/ops_recurrent.h"

namespace switchyard::cuda::ops {
namespace {

using kernels::GatedNormParams;
using kernels::OutputGate;

using Warp = RowThreads<false>;  // the threads of one head of a row

template <OutputGate kGate>
__device__ __forceinline__ float4 Gated(float4 x, float4 z) {
  if constexpr (kGate == OutputGate::kSigmoid) {
    return {x.x / (1.0f + expf(-z.x)), x.y / (1.0f + expf(-z.y)), x.z / (1.0f + expf(-z.z)),
            x.w / (1.0f + expf(-z.w))};
  } else {
    return {x.x * Silu(z.x), x.y * Silu(z.y), x.z * Silu(z.z), x.w * Silu(z.w)};
  }
}

template <OutputGate kGate, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) GatedNormKernel(const GatedNormParams p) {
  constexpr bool kBefore = kGate == OutputGate::kSiluBefore;
  LaunchDependentsAndWait();
  const int64_t at = Warp::Row(), row = at / p.heads, head = at % p.heads;
  if (row >= p.m) return;
  float* x = p.x + row * p.ldx + head * p.n;
  const float* z = nullptr;
  if constexpr (kGate != OutputGate::kNone)
    z = p.z + row * p.ldz + head / p.group * p.z_stride + head % p.group * p.n;
  const float* weight = p.weight + head * p.weight_stride;
  [[maybe_unused]] const auto gate = [&](int64_t i) { return LoadRow4<kAligned>(z, i, p.n); };
  const auto normed = [&](int64_t i) {  // elements before the norm
    float4 v = LoadRow4<kAligned>(x, i, p.n);
    if constexpr (kBefore) v = Gated<kGate>(v, gate(i));
    return v;
  };
  double squares = 0;
  for (int64_t i = Warp::Rank() * 4; i < p.n; i += Warp::kSize * 4) squares += SquaresOf(normed(i));
  const float scale = ScaleOf(Warp::Sum(squares), p.n, p.eps);
  for (int64_t i = Warp::Rank() * 4; i < p.n; i += Warp::kSize * 4) {
    float4 y = Scaled(normed(i), scale, LoadRow4<kAligned>(weight, i, p.n));
    if constexpr (!kBefore && kGate != OutputGate::kNone) y = Gated<kGate>(y, gate(i));
    StoreRow4<kAligned>(x, i, p.n, y);
  }
}

template <OutputGate kGate>
cudaError_t Start(const GatedNormParams& p, const PdlStream& chain) {
  const bool aligned =
      RowsAligned(p.x, p.ldx, p.n) && Aligned16(p.weight) && p.weight_stride % 4 == 0 &&
      (kGate == OutputGate::kNone || (RowsAligned(p.z, p.ldz, p.n) && p.z_stride % 4 == 0));
  const auto kernel = aligned ? GatedNormKernel<kGate, true> : GatedNormKernel<kGate, false>;
  const int64_t blocks = CeilDiv(p.m * p.heads, Warp::kRowsPerBlock);
  return LaunchWithPdl(kernel, dim3(static_cast<unsigned>(blocks)), kNormThreads, 0, chain, p);
}

}  // namespace

cudaError_t GatedNorm(const GatedNormParams& p, const PdlStream& chain) {
  if (p.m == 0 || p.heads == 0 || p.n == 0) return cudaSuccess;
  switch (p.gate) {
    case OutputGate::kNone:
      return Start<OutputGate::kNone>(p, chain);
    case OutputGate::kSilu:
      return Start<OutputGate::kSilu>(p, chain);
    case OutputGate::kSigmoid:
      return Start<OutputGate::kSigmoid>(p, chain);
    case OutputGate::kSiluBefore:
      return Start<OutputGate::kSiluBefore>(p, chain);
  }
  return cudaErrorInvalidValue;
}

}  // namespace switchyard::cuda::ops
