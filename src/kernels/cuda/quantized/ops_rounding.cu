// Problem: quantization of GEMM inputs [m, k], optionally after the MLP activation: rounding to an
// ActivationFormat (output float32 or bfloat16), and e4m3 codes with one scale per 128 elements.
// Tiling: one block of 256 threads per row; a warp holds a group of 128 elements, four per lane.
// Pipeline: none; launched early (kernel_chain.cuh). Formats with one scale per row read it twice.
// Measured on one H200: 250 µs for the input of 8192 tokens of DeepSeek-V3's experts.
// Source of the rounding rules: quant/activations.h and quant/fp8.h.
#include <cmath>

#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/elementwise/ops_elements.cuh"
#include "kernels/cuda/quantized/fp8.cuh"
#include "kernels/cuda/quantized/ops_rounding.h"

namespace switchyard::cuda::ops {

// kernels::Activation on one and on four elements.
__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float Activated(const ActivationArg& act, float gate, float up) {
  // The comparisons propagate NaN.
  if (act.kind == kernels::Activation::kRelu2) return up < 0.0f ? 0.0f : up * up;
  if (act.kind == kernels::Activation::kSwiGlu) return gate * Sigmoid(gate) * up;
  const float g = gate > act.limit ? act.limit : gate;
  const float u = up > act.limit ? act.limit : up < -act.limit ? -act.limit : up;
  if (act.kind == kernels::Activation::kSwiGluLimited) return g * Sigmoid(g) * u;
  return g * Sigmoid(act.alpha * g) * (u + 1.0f);
}

__device__ __forceinline__ float4 Activated(const ActivationArg& act, float4 gate, float4 up) {
  return {Activated(act, gate.x, up.x), Activated(act, gate.y, up.y), Activated(act, gate.z, up.z),
          Activated(act, gate.w, up.w)};
}

namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 128;  // kFp8GroupSize; one warp, four elements per lane
static_assert(kGroup == kWarp * 4);

// Maximum over the block, returned to every thread.
__device__ __forceinline__ int BlockMax(int bits) {
  __shared__ int parts[kThreads / kWarp];
  bits = WarpMax(bits);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = bits;
  __syncthreads();
  for (const int part : parts) bits = max(bits, part);
  return bits;
}

__device__ __forceinline__ float4 Times(float4 v, float f) {
  return {v.x * f, v.y * f, v.z * f, v.w * f};
}

__device__ __forceinline__ float4 RoundToFp8(float4 v, float scale) {
  const float4 s = Times(v, __fdiv_rn(1.0f, scale));
  return Times(E4m3x4(EncodeFp8(s.x, s.y, s.z, s.w)), scale);
}

__device__ __forceinline__ float4 RoundToInt8(float4 v, float scale) {
  const float4 s = Times(v, __fdiv_rn(1.0f, scale));
  return Times({rintf(s.x), rintf(s.y), rintf(s.z), rintf(s.w)}, scale);
}

__device__ __forceinline__ float Int8Scale(int largest) {
  constexpr float kSmallestScale = 0x1p-64f;
  const float scale = __fdiv_rn(__int_as_float(largest), 127.0f);
  return scale < kSmallestScale ? kSmallestScale : scale;
}

template <bool kAligned>
__device__ __forceinline__ float4 Load4(const RowSource& rows, int64_t row, int64_t i) {
  const float4 x = LoadRow4<kAligned>(rows.x + row * rows.ldx, i, rows.k);
  if (rows.up == nullptr) return x;
  return Activated(rows.act, x, LoadRow4<kAligned>(rows.up + row * rows.ldx, i, rows.k));
}

// The scale of a row, for formats with one scale per row.
template <ActivationFormat kFormat, bool kAligned>
__device__ __forceinline__ float RowScale(const RowSource& rows, int64_t row, float input_scale) {
  if constexpr (kFormat == ActivationFormat::kFp8Token || kFormat == ActivationFormat::kInt8Token) {
    int largest = 0;
    for (int64_t i = threadIdx.x * 4; i < rows.k; i += kThreads * 4) {
      largest = max(largest, LargestOf(Load4<kAligned>(rows, row, i)));
    }
    largest = BlockMax(largest);
    return kFormat == ActivationFormat::kFp8Token ? Fp8ScaleOf(largest) : Int8Scale(largest);
  }
  return input_scale;
}

template <bool kAligned>
__device__ __forceinline__ void StoreOut(float* row, int64_t i, int64_t k, float4 v) {
  StoreRow4<kAligned>(row, i, k, v);
}
template <bool kAligned>
__device__ __forceinline__ void StoreOut(uint16_t* row, int64_t i, int64_t k, float4 v) {
  const uint2 bits = ToBf16x4(v);
  if constexpr (kAligned) {
    if (i < k) *reinterpret_cast<uint2*>(row + i) = bits;
  } else {
    const uint32_t parts[4] = {bits.x, bits.x >> 16, bits.y, bits.y >> 16};
    for (int j = 0; j < 4 && i + j < k; ++j) row[i + j] = static_cast<uint16_t>(parts[j]);
  }
}

// Rounds row blockIdx.x of p to kFormat.
template <ActivationFormat kFormat, bool kAligned, typename Out>
__global__ void __launch_bounds__(kThreads) RoundKernel(RowSource p, float input_scale, Out* out) {
  LaunchDependentsAndWait();
  const int64_t row = blockIdx.x;
  const float row_scale = RowScale<kFormat, kAligned>(p, row, input_scale);
  // Whole warps take part in every step, as the group maximum requires.
  for (int64_t i = threadIdx.x * 4; i / kGroup * kGroup < p.k; i += kThreads * 4) {
    float4 v = Load4<kAligned>(p, row, i);
    if constexpr (kFormat == ActivationFormat::kFp8Group) {
      v = RoundToFp8(v, Fp8ScaleOf(WarpMax(LargestOf(v))));
    } else if constexpr (kFormat == ActivationFormat::kInt8Token) {
      v = RoundToInt8(v, row_scale);
    } else if constexpr (kFormat != ActivationFormat::kNone) {
      v = RoundToFp8(v, row_scale);
    }
    StoreOut<kAligned>(out + row * p.k, i, p.k, v);
  }
}

bool IsAligned(const RowSource& p) {
  return RowsAligned(p.x, p.ldx, p.k) && (p.up == nullptr || Aligned16(p.up));
}

template <ActivationFormat kFormat, typename Out>
cudaError_t Start(const RowSource& p, float input_scale, Out* out, const PdlStream& chain) {
  const bool aligned = IsAligned(p) && Aligned16(out);
  const auto kernel = aligned ? RoundKernel<kFormat, true, Out> : RoundKernel<kFormat, false, Out>;
  return LaunchWithPdl(kernel, dim3(static_cast<unsigned>(p.m)), kThreads, 0, chain, p, input_scale,
                       out);
}

template <typename Out>
cudaError_t Round(const RowSource& p, const Rounding& r, Out* out, const PdlStream& chain) {
  if (p.m == 0 || p.k == 0) return cudaSuccess;
  switch (r.format) {
    case ActivationFormat::kNone:
      return Start<ActivationFormat::kNone>(p, r.input_scale, out, chain);
    case ActivationFormat::kFp8Group:
      return Start<ActivationFormat::kFp8Group>(p, r.input_scale, out, chain);
    case ActivationFormat::kFp8Token:
      return Start<ActivationFormat::kFp8Token>(p, r.input_scale, out, chain);
    case ActivationFormat::kFp8Tensor:
      return Start<ActivationFormat::kFp8Tensor>(p, r.input_scale, out, chain);
    case ActivationFormat::kInt8Token:
      return Start<ActivationFormat::kInt8Token>(p, r.input_scale, out, chain);
    case ActivationFormat::kBFloat16:
    case ActivationFormat::kInt8Group:
      break;  // never a format of rows on GPUs
  }
  return cudaErrorInvalidValue;
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(RowSource p, uint8_t* codes, float* scales, int64_t scale_stride) {
  LaunchDependentsAndWait();
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x * 4; i < p.k; i += kThreads * 4) {
    const Fp8Four quantized = QuantizeFour(Load4<kAligned>(p, row, i));
    *reinterpret_cast<uint32_t*>(codes + row * p.k + i) = quantized.codes;
    if (threadIdx.x % kWarp == 0) scales[i / kGroup * scale_stride + row] = quantized.scale;
  }
}

}  // namespace

cudaError_t RoundRows(const RowSource& rows, const Rounding& rounding, float* out,
                      cudaStream_t stream) {
  return Round(rows, rounding, out, stream);
}

cudaError_t RoundRowsToBf16(const RowSource& rows, const Rounding& rounding, void* out,
                            const PdlStream& chain) {
  return Round(rows, rounding, static_cast<uint16_t*>(out), chain);
}

cudaError_t QuantizeRows(const RowSource& rows, uint8_t* codes, float* scales, int64_t scale_stride,
                         const PdlStream& chain) {
  if (rows.m == 0 || rows.k == 0) return cudaSuccess;
  if (rows.k % kGroup != 0) return cudaErrorInvalidValue;
  const auto kernel = IsAligned(rows) ? QuantizeKernel<true> : QuantizeKernel<false>;
  return LaunchWithPdl(kernel, dim3(static_cast<unsigned>(rows.m)), kThreads, 0, chain, rows, codes,
                       scales, scale_stride);
}

}  // namespace switchyard::cuda::ops
