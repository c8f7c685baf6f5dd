// Grouped products with packed 4-bit weights on one GPU, and with the same weights expanded. Prints
// both times, and the number of results that differ, which should be 0.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/gpu_timing.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"

namespace switchyard::bench {
namespace {

using cuda::W4A16Format;
using cuda::W4A16Kind;

constexpr float kScale = 0.01f;

// Fills packed weights with random codes, and with scales of about kScale.
__global__ void FillRecords(uint8_t* records, size_t bytes, W4A16Format format) {
  const int record = W4A16RecordBytes(format);
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < bytes;
       i += size_t{gridDim.x} * blockDim.x) {
    const int at = static_cast<int>(i % record) - cuda::kW4A16CodeBytes;
    const auto any = static_cast<uint32_t>(Uniform(i) * 16777216.0f);
    if (at < 0) {
      records[i] = static_cast<uint8_t>(any);
    } else if (format.kind == W4A16Kind::kMxfp4) {
      records[i] = static_cast<uint8_t>(cuda::kW4A16ScaleShift + 119 + any % 3);
    } else if (format.kind == W4A16Kind::kNvfp4) {
      records[i] = static_cast<uint8_t>(0x60 + any % 24);  // e4m3 scales from 32 to 240
    } else if (at < cuda::kW4A16Tile * format.scales * static_cast<int>(sizeof(float))) {
      records[i] = static_cast<uint8_t>(__float_as_uint(kScale) >> (8 * (at % 4)));
    } else {
      records[i] = 8;
    }
  }
}

__global__ void CountDifferences(const uint32_t* a, const uint32_t* b, size_t n, int* count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    if (a[i] != b[i]) atomicAdd(count, 1);
}

struct Kind {
  const char* name;
  W4A16Format format;
};

// Groups of `rows_of_group` rows each. Products with expanded weights use the contiguous layout if
// the rows fill its blocks.
void Case(const Kind& kind, int groups, int rows_of_group, int64_t n, int64_t k,
          const GpuMachine& machine, Report& report) {
  const int64_t stride = (rows_of_group + 3) / 4 * 4, rows = groups * stride;
  const std::string name = "grouped-gemm";
  const std::string shape = Text("%s masked %d groups %lld x %lld x %lld", kind.name, groups,
                                 static_cast<long long>(groups) * rows_of_group,
                                 static_cast<long long>(n), static_cast<long long>(k));
  if (!report.Selects(name, shape)) return;
  report.Start(name, shape);

  const int64_t record_bytes = W4A16RecordBytes(kind.format);
  const int64_t bytes = groups * cuda::W4A16RowTiles(n) * cuda::W4A16ColumnTiles(k) * record_bytes;
  const bool in_blocks = rows_of_group % cuda::kGroupBlockRows == 0;
  std::vector<int32_t> begins, counts(groups, rows_of_group), blocks;
  for (int g = 0; g < groups; ++g) {
    begins.push_back(static_cast<int32_t>(g * stride));
    blocks.insert(blocks.end(), rows_of_group / cuda::kGroupBlockRows + 1, g);
    if (in_blocks) blocks.pop_back();
  }
  DeviceArray<uint8_t> records(bytes);
  const DeviceArray<float> globals(std::vector<float>(groups * cuda::W4A16RowTiles(n),
                                                      std::ldexp(1e-4f, cuda::kW4A16ScaleShift)));
  DeviceArray<__nv_bfloat16> a(rows * k), expanded(groups * n * k), d(rows * n), want(rows * n);
  const DeviceArray<int32_t> device_begins(begins), device_counts(counts), device_blocks(blocks);
  DeviceArray<int> differences(1);
  FillRecords<<<1024, 256>>>(records.data, bytes, kind.format);
  FillNormal<<<1024, 256>>>(a.data, rows * k, 1);
  for (auto* results : {&d, &want})
    cuda::Check(cudaMemset(results->data, 0xff, rows * n * 2), "results");
  cuda::Check(cudaMemset(differences.data, 0, sizeof(int)), "differences");
  cuda::ExpandW4A16({.format = kind.format,
                     .records = records.data,
                     .globals = globals.data,
                     .to = expanded.data,
                     .n = n,
                     .k = k,
                     .groups = groups},
                    nullptr);
  cuda::Check(cudaDeviceSynchronize(), "made-up weights");

  const double operations = 2.0 * static_cast<double>(groups * rows_of_group) *
                            static_cast<double>(n) * static_cast<double>(k);
  const int calls = std::clamp(static_cast<int>(8e12 / operations), 2, 8);
  const double plain = GraphSeconds(calls, [&](int, cudaStream_t stream) {
    cuda::GroupedGemmBf16({.a = a.data,
                           .b = expanded.data,
                           .d = want.data,
                           .block_groups = in_blocks ? device_blocks.data : nullptr,
                           .rows = rows,
                           .n = n,
                           .k = k,
                           .groups = groups,
                           .group_begins = in_blocks ? nullptr : device_begins.data,
                           .group_rows = in_blocks ? nullptr : device_counts.data},
                          stream);
  });
  const double seconds = GraphSeconds(calls, [&](int, cudaStream_t stream) {
    cuda::GroupedGemmW4A16({.a = a.data,
                            .format = kind.format,
                            .records = records.data,
                            .globals = globals.data,
                            .d = d.data,
                            .rows = rows,
                            .n = n,
                            .k = k,
                            .groups = groups,
                            .group_begins = device_begins.data,
                            .group_rows = device_counts.data},
                           stream);
  });
  CountDifferences<<<256, 256>>>(reinterpret_cast<const uint32_t*>(d.data),
                                 reinterpret_cast<const uint32_t*>(want.data), rows * n / 2,
                                 differences.data);
  int different = 0;
  cuda::Check(cudaMemcpy(&different, differences.data, sizeof(int), cudaMemcpyDeviceToHost),
              "differences");
  const double moved = static_cast<double>(bytes + groups * rows_of_group * (k + n) * 2);
  report.Add({.name = name,
              .shape = shape,
              .seconds = seconds,
              .flops = operations,
              .bytes = moved,
              .limit = Roofline(moved, machine.bandwidth(), operations, machine.bf16),
              .more = {{"of bf16's time", seconds / plain},
                       {"words that differ", static_cast<double>(different)}}});
}

}  // namespace

void W4A16Bench(const Options&, const GpuMachine& machine, Report& report) {
  for (const Kind& kind :
       {Kind{"mxfp4", {W4A16Kind::kMxfp4, 2}}, Kind{"nvfp4", {W4A16Kind::kNvfp4, 4}},
        Kind{"int4", {W4A16Kind::kInt4, 1}}}) {
    for (const int rows : {1, 4, 20, 64, 192, 1024}) {
      Case(kind, 32, rows, 6144, 7168, machine, report);
      Case(kind, 32, rows, 7168, 3072, machine, report);
    }
    Case(kind, 16, 8, 1536, 2048, machine, report);  // Qwen3-30B-A3B on 8 ranks
    Case(kind, 16, 8, 2048, 768, machine, report);
  }
}

}  // namespace switchyard::bench
