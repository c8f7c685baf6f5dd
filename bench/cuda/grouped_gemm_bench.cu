// The grouped GEMM on one GPU: its time, and its error against float64 sums of sampled elements.
// "contiguous": groups in blocks of rows, as in prefill. "masked": row counts in device memory, as
// in decode (gemm.h). A shape's rows exclude padding.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/gpu_timing.h"
#include "kernels/cuda/gemm/gemm.h"

namespace switchyard::bench {
namespace {

using cuda::GroupedGemmParams;
using cuda::kGroupBlockRows;

constexpr int kSamples = 4096;  // elements that are checked

__device__ double Value(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ double Value(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__global__ void Reference(GroupedGemmParams p, const int* rows, const int* columns,
                          const int* row_groups, double* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int64_t r = rows[i], c = columns[i], g = row_groups[r];
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
double ErrorOfSamples(const GroupedGemmParams& p, const std::vector<int>& row_groups,
                      std::mt19937& random) {
  std::vector<int> rows(kSamples), columns(kSamples);
  for (int i = 0; i < kSamples; ++i) {
    do rows[i] = static_cast<int>(random() % p.rows);
    while (row_groups[rows[i]] < 0);
    columns[i] = static_cast<int>(random() % p.n);
  }
  const DeviceArray<int> device_rows(rows), device_columns(columns), device_groups(row_groups);
  DeviceArray<double> device_want(kSamples);
  Reference<T><<<kSamples / 64, 64>>>(p, device_rows.data, device_columns.data, device_groups.data,
                                      device_want.data);
  std::vector<double> want(kSamples);
  cuda::Check(
      cudaMemcpy(want.data(), device_want.data, kSamples * sizeof(double), cudaMemcpyDeviceToHost),
      "copy of the reference sums");
  std::vector<__nv_bfloat16> got(p.rows * p.n);
  cuda::Check(cudaMemcpy(got.data(), p.d, got.size() * 2, cudaMemcpyDeviceToHost), "results");
  double error = 0, size = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double x = __bfloat162float(got[int64_t{rows[i]} * p.n + columns[i]]);
    error += (x - want[i]) * (x - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

enum class RowLayout { kBlocks, kCounts };

// Measures `groups` groups, each with a random number of rows between 0.7 and 1.3 times
// `rows_of_group`.
template <typename T>
void Case(RowLayout layout, int groups, int rows_of_group, int64_t n, int64_t k,
          const GpuMachine& machine, Report& report) {
  constexpr bool kFp8 = sizeof(T) == 1;
  std::mt19937 random(groups + rows_of_group);
  std::vector<int32_t> blocks, begins, counts;
  std::vector<int> row_groups;
  int64_t real_rows = 0;
  for (int g = 0; g < groups; ++g) {
    counts.push_back(static_cast<int>(rows_of_group * (0.7 + 0.6 * (random() % 1000) / 1000.0)));
    begins.push_back(static_cast<int>(row_groups.size()));
    row_groups.resize(row_groups.size() + counts[g], g);
    blocks.insert(blocks.end(), (counts[g] + kGroupBlockRows - 1) / kGroupBlockRows, g);
    row_groups.resize(blocks.size() * kGroupBlockRows, -1);
    real_rows += counts[g];
  }
  const int64_t rows = std::ssize(row_groups);
  const std::string name = "grouped-gemm";
  const std::string shape =
      Text("%s %s %d groups %lld x %lld x %lld", kFp8 ? "fp8" : "bf16",
           layout == RowLayout::kBlocks ? "contiguous" : "masked", groups,
           static_cast<long long>(real_rows), static_cast<long long>(n), static_cast<long long>(k));
  if (!report.Selects(name, shape)) return;
  report.Start(name, shape);

  DeviceArray<T> a(rows * k), b(groups * n * k);
  DeviceArray<float> a_scales(rows * (k / 128)), b_scales(groups * (n / 128) * (k / 128));
  DeviceArray<__nv_bfloat16> d(rows * n);
  const DeviceArray<int32_t> device_blocks(blocks), device_begins(begins), device_counts(counts);
  FillNormal<<<1024, 256>>>(a.data, rows * k, 1);
  FillNormal<<<1024, 256>>>(b.data, groups * n * k, uint64_t{1} << 40);
  FillScales<<<256, 256>>>(a_scales.data, rows * (k / 128), 7);
  FillScales<<<256, 256>>>(b_scales.data, groups * (n / 128) * (k / 128), 9);
  cuda::Check(cudaMemset(d.data, 0xff, rows * n * 2), "results");
  cuda::Check(cudaDeviceSynchronize(), "made-up weights");
  GroupedGemmParams p = {.a = a.data,
                         .a_scales = kFp8 ? a_scales.data : nullptr,
                         .b = b.data,
                         .b_scales = kFp8 ? b_scales.data : nullptr,
                         .d = d.data,
                         .rows = rows,
                         .n = n,
                         .k = k,
                         .groups = groups};
  if (layout == RowLayout::kBlocks) {
    p.block_groups = device_blocks.data;
  } else {
    p.group_begins = device_begins.data;
    p.group_rows = device_counts.data;
  }
  const double operations = 2.0 * static_cast<double>(real_rows * n) * static_cast<double>(k);
  const int calls = std::clamp(static_cast<int>(8e12 / operations), 2, 8);
  const double seconds = GraphSeconds(calls, [&](int, cudaStream_t stream) {
    kFp8 ? cuda::GroupedGemmFp8(p, stream) : cuda::GroupedGemmBf16(p, stream);
  });
  // The weights of an empty group are not read.
  const int64_t busy = std::ranges::count_if(counts, [](int32_t count) { return count > 0; });
  const double bytes =
      static_cast<double>((busy * n + real_rows) * k * sizeof(T) + real_rows * n * 2);
  report.Add(
      {.name = name,
       .shape = shape,
       .seconds = seconds,
       .flops = operations,
       .bytes = bytes,
       .limit = Roofline(bytes, machine.bandwidth(), operations, kFp8 ? machine.fp8 : machine.bf16),
       .more = {{"error", ErrorOfSamples<T>(p, row_groups, random)}}});
}

template <typename T>
void Cases(const GpuMachine& machine, Report& report) {
  Case<T>(RowLayout::kBlocks, 3, 300, 512, 512, machine, report);
  Case<T>(RowLayout::kBlocks, 8, 4096, 6144, 7168, machine, report);
  Case<T>(RowLayout::kBlocks, 8, 4096, 7168, 3072, machine, report);
  Case<T>(RowLayout::kBlocks, 8, 4096, 4096, 2048, machine, report);
  for (const int rows : {1, 4, 20, 64, 192, 400})
    for (const RowLayout layout : {RowLayout::kCounts, RowLayout::kBlocks}) {
      if (layout == RowLayout::kBlocks && rows < 64) continue;
      Case<T>(layout, 32, rows, 6144, 7168, machine, report);
      Case<T>(layout, 32, rows, 7168, 3072, machine, report);
    }
  Case<T>(RowLayout::kCounts, 16, 8, 1536, 2048, machine, report);  // Qwen3-30B-A3B on 8 ranks
  Case<T>(RowLayout::kCounts, 16, 8, 2048, 768, machine, report);
}

}  // namespace

void GroupedGemmBench(const Options&, const GpuMachine& machine, Report& report) {
  Cases<__nv_fp8_e4m3>(machine, report);
  Cases<__nv_bfloat16>(machine, report);
}

}  // namespace switchyard::bench
