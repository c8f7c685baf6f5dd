#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/roofline.h"

namespace switchyard::kernels {
namespace {

constexpr int kRuns = 7;

// Median time in seconds over kRuns, after one warm-up run.
double MedianSeconds(const cuda::Stream& stream, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= kRuns; ++i) {
    cuda::Event start, end;
    start.Record(stream.get());
    work();
    end.Record(stream.get());
    end.Wait();
    if (i > 0) times.push_back(end.MillisecondsSince(start) / 1e3);
  }
  std::ranges::nth_element(times, times.begin() + kRuns / 2);
  return times[kRuns / 2];
}

// Normally distributed values: a matrix of zeros draws less power and runs faster.
cuda::DeviceMemory RandomMatrix(int64_t elements) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<BF16> row(1 << 16);
  for (BF16& x : row) x = ToBF16(normal(random));
  cuda::DeviceMemory memory(elements * sizeof(BF16));
  for (int64_t at = 0; at < elements; at += std::ssize(row))
    cuda::CopyToDevice(memory.as<BF16>() + at, row.data(),
                       std::min<int64_t>(elements - at, std::ssize(row)) * sizeof(BF16),
                       "random matrix");
  return memory;
}

}  // namespace

GpuCeilings MeasureGpu(int index) {
  cuda::UseDevice(index);
  const cuda::Stream stream;
  GpuCeilings ceilings;
  {
    constexpr size_t kBytes = size_t{1} << 30;
    const cuda::DeviceMemory from(kBytes), to(kBytes);
    ceilings.copy_bandwidth = 2.0 * kBytes / MedianSeconds(stream, [&] {
                                cuda::Check(cudaMemcpyAsync(to.data(), from.data(), kBytes,
                                                            cudaMemcpyDeviceToDevice, stream.get()),
                                            "timed copy");
                              });
  }
  if (!cuda::IsHopper()) return ceilings;
  constexpr int64_t kSize = 8192;
  const cuda::DeviceMemory x = RandomMatrix(kSize * kSize), w = RandomMatrix(kSize * kSize);
  const cuda::DeviceMemory y(kSize * kSize * sizeof(BF16));
  ceilings.bf16_flops = 2.0 * kSize * kSize * kSize / MedianSeconds(stream, [&] {
                          cuda::DenseGemm({.x = x.data(),
                                           .w = w.data(),
                                           .y = y.data(),
                                           .float_output = false,
                                           .m = kSize,
                                           .n = kSize,
                                           .k = kSize},
                                          stream.get());
                        });
  return ceilings;
}

}  // namespace switchyard::kernels
