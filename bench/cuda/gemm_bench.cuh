// What the GEMM benchmarks share: arrays of numbers, times, lines of results.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace gemm_bench {

inline void Check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) gemm_bench::Check((call), __LINE__)

template <typename T>
struct DeviceArray {
  explicit DeviceArray(size_t n) { CHECK_CUDA(cudaMalloc(&data, n * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    CHECK_CUDA(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  T* data = nullptr;
};

// Numbers that depend on index and seed alone.
__device__ inline float Uniform(uint64_t index) {  // (0, 1]
  index ^= index >> 33;
  index *= 0xff51afd7ed558ccdULL;
  index ^= index >> 33;
  index *= 0xc4ceb9fe1a85ec53ULL;
  return (static_cast<float>(index >> 40) + 1.0f) / 16777216.0f;
}
__device__ inline float Normal(uint64_t index) {
  return sqrtf(-2.0f * logf(Uniform(2 * index))) * cospif(2.0f * Uniform(2 * index + 1));
}
__device__ inline void Set(__nv_fp8_e4m3* p, float x) { *p = __nv_fp8_e4m3(30.0f * x); }
__device__ inline void Set(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }
template <typename T>
__global__ void FillNormal(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    Set(p + i, Normal(i + seed));
}
static __global__ void FillScales(float* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    p[i] = 0.01f + 0.02f * Uniform(i + seed);
}

// Seconds of one call: the median over graphs of `calls` calls each, so that the host's part is not
// in it. call(i, stream) enqueues the i-th.
inline double Seconds(int calls, const std::function<void(int, cudaStream_t)>& call) {
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  call(0, stream);  // sets up what cannot be set up while a graph is recorded
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i, stream);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    float ms;
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaEventSynchronize(end));
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i > 1) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1e-3 / calls;
}

// What the card can do: bytes a second of a copy, measured; operations a second that cuBLASLt gets
// out of an H200 with 8192³ (docs/notes/gpu.md), not measured here.
struct Ceilings {
  double bandwidth = 0;
  static constexpr double kBf16 = 787e12, kFp8 = 1476e12;

  static Ceilings Measure() {
    constexpr size_t kBytes = size_t{1} << 30;
    const DeviceArray<char> from(kBytes), to(kBytes);
    const double seconds = Seconds(4, [&](int, cudaStream_t stream) {
      CHECK_CUDA(cudaMemcpyAsync(to.data, from.data, kBytes, cudaMemcpyDeviceToDevice, stream));
    });
    return {2.0 * kBytes / seconds};
  }
};

// One line: time, operations and bytes a second, and what the faster of the two ceilings would
// allow of it.
inline void Print(const char* name, bool fp8, long long m, long long n, long long k, double seconds,
                  double operations, double bytes, const Ceilings& ceilings) {
  const double best =
      std::max(operations / (fp8 ? Ceilings::kFp8 : Ceilings::kBf16), bytes / ceilings.bandwidth);
  std::printf("%-8s %s %6lld x %6lld x %5lld %9.1f us %5.0f TFLOP/s %5.0f GB/s  %3.0f%%\n", name,
              fp8 ? "fp8 " : "bf16", m, n, k, seconds * 1e6, operations / seconds * 1e-12,
              bytes / seconds * 1e-9, 100 * best / seconds);
}

}  // namespace gemm_bench
