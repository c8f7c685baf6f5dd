// The grouped GEMM on one GPU: right against float64 sums of sampled elements, and how fast. One
// line per case: shape, relative error, median time, TFLOP/s of all rows and of those that are no
// padding.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/grouped_gemm.h"

namespace {

using switchyard::cuda::GroupedGemmParams;
using switchyard::cuda::kGroupBlockRows;

constexpr int kSamples = 4096;  // elements that are checked
constexpr int kRuns = 20;

void Check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) Check((call), __LINE__)

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
__device__ float Uniform(uint64_t index) {  // (0, 1]
  index ^= index >> 33;
  index *= 0xff51afd7ed558ccdULL;
  index ^= index >> 33;
  index *= 0xc4ceb9fe1a85ec53ULL;
  return (static_cast<float>(index >> 40) + 1.0f) / 16777216.0f;
}
__device__ float Normal(uint64_t index) {
  return sqrtf(-2.0f * logf(Uniform(2 * index))) * cospif(2.0f * Uniform(2 * index + 1));
}
__device__ void Set(__nv_fp8_e4m3* p, float x) { *p = __nv_fp8_e4m3(30.0f * x); }
__device__ void Set(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }
template <typename T>
__global__ void FillNormal(T* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    Set(p + i, Normal(i + seed));
}
__global__ void FillScales(float* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    p[i] = 0.01f + 0.02f * Uniform(i + seed);
}

__device__ double Value(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ double Value(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__global__ void Reference(GroupedGemmParams p, const int* rows, const int* columns, double* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int64_t r = rows[i], c = columns[i], g = p.block_groups[r / kGroupBlockRows];
  const T* a = static_cast<const T*>(p.a) + r * p.k;
  const T* b = static_cast<const T*>(p.b) + (g * p.n + c) * p.k;
  double sum = 0;
  for (int64_t j = 0; j < p.k; ++j) {
    double scale = 1;
    if (p.a_scales)
      scale = static_cast<double>(p.a_scales[j / 128 * p.rows + r]) *
              p.b_scales[(g * (p.n / 128) + c / 128) * (p.k / 128) + j / 128];
    sum += Value(a[j]) * Value(b[j]) * scale;
  }
  out[i] = sum;
}

template <typename T>
double ErrorOfSamples(const GroupedGemmParams& p, int used_rows, std::mt19937& random) {
  std::vector<int> rows(kSamples), columns(kSamples);
  for (int i = 0; i < kSamples; ++i) {
    rows[i] = static_cast<int>(random() % used_rows);
    columns[i] = static_cast<int>(random() % p.n);
  }
  const DeviceArray<int> device_rows(rows), device_columns(columns);
  DeviceArray<double> device_want(kSamples);
  Reference<T><<<kSamples / 64, 64>>>(p, device_rows.data, device_columns.data, device_want.data);
  std::vector<double> want(kSamples);
  CHECK_CUDA(
      cudaMemcpy(want.data(), device_want.data, kSamples * sizeof(double), cudaMemcpyDeviceToHost));
  std::vector<__nv_bfloat16> got(p.rows * p.n);
  CHECK_CUDA(cudaMemcpy(got.data(), p.d, got.size() * 2, cudaMemcpyDeviceToHost));
  double error = 0, size = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double x = __bfloat162float(got[int64_t{rows[i]} * p.n + columns[i]]);
    error += (x - want[i]) * (x - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

// Groups of 0.7 to 1.3 times `rows_of_group` rows.
template <typename T>
void Case(int groups, int rows_of_group, int64_t n, int64_t k) {
  constexpr bool kFp8 = sizeof(T) == 1;
  std::mt19937 random(groups + rows_of_group);
  std::vector<int32_t> block_groups;
  int64_t real_rows = 0;
  for (int g = 0; g < groups; ++g) {
    const int rows = static_cast<int>(rows_of_group * (0.7 + 0.6 * (random() % 1000) / 1000.0));
    real_rows += rows;
    block_groups.insert(block_groups.end(), (rows + kGroupBlockRows - 1) / kGroupBlockRows, g);
  }
  const int64_t used_rows = std::ssize(block_groups) * kGroupBlockRows;
  block_groups.push_back(-1);
  const int64_t rows = std::ssize(block_groups) * kGroupBlockRows;

  DeviceArray<T> a(rows * k), b(groups * n * k);
  DeviceArray<float> a_scales(rows * (k / 128)), b_scales(groups * (n / 128) * (k / 128));
  DeviceArray<__nv_bfloat16> d(rows * n);
  const DeviceArray<int32_t> device_groups(block_groups);
  FillNormal<<<1024, 256>>>(a.data, rows * k, 1);
  FillNormal<<<1024, 256>>>(b.data, groups * n * k, uint64_t{1} << 40);
  FillScales<<<256, 256>>>(a_scales.data, rows * (k / 128), 7);
  FillScales<<<256, 256>>>(b_scales.data, groups * (n / 128) * (k / 128), 9);
  CHECK_CUDA(cudaMemset(d.data, 0xff, rows * n * 2));
  const GroupedGemmParams p = {.a = a.data,
                               .a_scales = kFp8 ? a_scales.data : nullptr,
                               .b = b.data,
                               .b_scales = kFp8 ? b_scales.data : nullptr,
                               .d = d.data,
                               .block_groups = device_groups.data,
                               .rows = rows,
                               .n = n,
                               .k = k,
                               .groups = groups};
  const auto run = [&] {
    kFp8 ? switchyard::cuda::GroupedGemmFp8(p, nullptr)
         : switchyard::cuda::GroupedGemmBf16(p, nullptr);
  };
  for (int i = 0; i < 3; ++i) run();
  CHECK_CUDA(cudaDeviceSynchronize());
  const double error = ErrorOfSamples<T>(p, static_cast<int>(used_rows), random);

  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times(kRuns);
  for (float& ms : times) {
    CHECK_CUDA(cudaEventRecord(begin));
    run();
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  const double seconds = times[kRuns / 2] * 1e-3;
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(k);
  std::printf(
      "%s  %d groups, %6lld rows, n %5lld, k %5lld: error %.1e  %7.3f ms  %5.0f TFLOP/s (%.0f)\n",
      kFp8 ? "fp8 " : "bf16", groups, static_cast<long long>(used_rows), static_cast<long long>(n),
      static_cast<long long>(k), error, seconds * 1e3, flops * used_rows / seconds * 1e-12,
      flops * real_rows / seconds * 1e-12);
}

template <typename T>
void Cases() {
  Case<T>(3, 300, 512, 512);
  Case<T>(8, 4096, 6144, 7168);
  Case<T>(8, 4096, 7168, 3072);
  Case<T>(8, 4096, 4096, 2048);
}

}  // namespace

int main() {
  Cases<__nv_bfloat16>();
  Cases<__nv_fp8_e4m3>();
}
