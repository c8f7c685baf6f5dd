#include <cuda_runtime.h>

#include <string>

#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_machine.h"
#include "bench/cuda/gpu_timing.h"
#include "core/cuda/runtime.h"
#include "kernels/roofline.h"

namespace switchyard::bench {
namespace {

__global__ void Read(const uint4* from, size_t n, unsigned* sum) {
  uint4 x = {};
  const size_t step = size_t{gridDim.x} * blockDim.x * 4;
  for (size_t i = blockIdx.x * size_t{blockDim.x} * 4 + threadIdx.x; i < n; i += step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = from[i + j * blockDim.x];
#pragma unroll
    for (int j = 0; j < 4; ++j) x.x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (x.x == 12345) *sum = 1;
}

double ReadBandwidth() {
  constexpr size_t kBytes = size_t{2} << 30;
  const DeviceArray<char> from(kBytes);
  const DeviceArray<unsigned> sum(1);
  const double seconds = GraphSeconds(4, [&](int, cudaStream_t stream) {
    Read<<<2048, 256, 0, stream>>>(reinterpret_cast<const uint4*>(from.data), kBytes / 16,
                                   sum.data);
  });
  return static_cast<double>(kBytes) / seconds;
}

constexpr int kChains = 8, kSteps = 4096;

// Multiply-adds in several independent chains, enough to keep the units busy.
__global__ void MultiplyAdd(float* out) {
  float sums[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) sums[c] = static_cast<float>(threadIdx.x + c);
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int c = 0; c < kChains; ++c) sums[c] = fmaf(sums[c], 0.5f, 0.25f);
  }
#pragma unroll
  for (int c = 1; c < kChains; ++c) sums[0] += sums[c];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sums[0];
}

double FloatPeak() {
  constexpr int kThreads = 256;
  const int blocks = cuda::MultiprocessorCount() * 8;
  const DeviceArray<float> out(static_cast<size_t>(blocks) * kThreads);
  const double seconds = GraphSeconds(
      4, [&](int, cudaStream_t stream) { MultiplyAdd<<<blocks, kThreads, 0, stream>>>(out.data); });
  return 2.0 * kChains * kSteps * blocks * kThreads / seconds;
}

}  // namespace

GpuMachine MeasureGpuMachine(int gpu, Report& report) {
  cuda::UseDevice(gpu);
  cudaDeviceProp properties;
  cuda::Check(cudaGetDeviceProperties(&properties, gpu), "GPU properties");
  const kernels::GpuCeilings ceilings = kernels::MeasureGpu(gpu);
  const GpuMachine machine = {.read = ReadBandwidth(),
                              .copy = ceilings.copy_bandwidth,
                              .bf16 = ceilings.bf16_flops,
                              .fp8 = 2 * ceilings.bf16_flops,
                              .f32 = FloatPeak()};
  report.Note(std::string(properties.name) + ", GPU " + std::to_string(gpu));
  report.Machine("reads", machine.read * 1e-9, "GB/s");
  report.Machine("copies, read and written", machine.copy * 1e-9, "GB/s");
  report.Machine("bfloat16, 8192^3", machine.bf16 * 1e-12, "TFLOP/s");
  report.Machine("float32", machine.f32 * 1e-12, "TFLOP/s");
  return machine;
}

}  // namespace switchyard::bench
