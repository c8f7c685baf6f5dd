// What the ops of a GPU take, through kernels::Device: a line each with the time, the bytes and
// products that the op cannot do without, and their part of the machine's roofline (a copy measured
// in the same run, and DESIGN's ceilings of the matrix units).
//
//   device_bench [rounds]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"

namespace switchyard {
namespace {

using kernels::Device;

constexpr int64_t kMaxTokens = 4096;
constexpr size_t kCopyBytes = size_t{1} << 30;
// Measured on an H200 with 8192³ (docs/notes/gpu.md); plain float32 by its clock and units.
constexpr double kBf16Flops = 787e12, kFp8Flops = 1476e12, kFloatFlops = 60e12;

struct Bench {
  Device& device;
  int rounds;
  double copy_rate = 0;  // bytes a second, read and written
  std::vector<std::shared_ptr<void>> memory;

  float* Floats(int64_t count) {
    memory.push_back(device.Allocate(count * sizeof(float)));
    return static_cast<float*>(memory.back().get());
  }

  // Median microseconds of `op`, recorded eight times in a graph so that launches do not count.
  double Time(uint64_t key, const std::function<void(int)>& op) const {
    constexpr int kRepeats = 8;
    const cudaStream_t stream = cuda::CudaDevice::From(device).stream();
    const auto pass = [&] {
      for (int i = 0; i < kRepeats; ++i) op(i);
    };
    for (int i = 0; i < 4; ++i) device.Run(key, pass);
    std::vector<double> times;
    const cuda::Event begin, end;
    for (int i = 0; i < rounds; ++i) {
      begin.Record(stream);
      device.Run(key, pass);
      end.Record(stream);
      end.Wait();
      times.push_back(end.MillisecondsSince(begin) * 1e3 / kRepeats);
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[rounds / 2];
  }

  void Line(const std::string& what, double us, double bytes, double flops, double ceiling) const {
    const double least = std::max(bytes / copy_rate, flops / ceiling) * 1e6;
    fmt::print("{:44} {:9.1f} us {:7.0f} GB/s {:7.1f} TFLOP/s {:5.0f} % of the roofline\n", what,
               us, bytes / us * 1e-3, flops / us * 1e-6, 100 * least / us);
  }
};

// Zeros: the time does not depend on values. Copies, so that weights do not stay in the L2 cache.
std::vector<WeightView> Weights(Bench& bench, WeightFormat format, int64_t n, int64_t k) {
  const int64_t element = format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBF16 ? 2 : 1;
  const int64_t bytes = n * k * element, scale_bytes = CeilDiv(n, 128) * CeilDiv(k, 128) * 4;
  std::vector<WeightView> weights;
  const int64_t copies = std::clamp<int64_t>((int64_t{160} << 20) / bytes, 1, 8);
  for (int64_t i = 0; i < copies; ++i) {
    WeightView w;
    w.format = format;
    w.owner = bench.device.Allocate(bytes);
    bench.memory.push_back(bench.device.Allocate(scale_bytes));
    w.data = w.owner.get();
    w.scales = bench.memory.back().get();
    w.n = n;
    w.k = w.stored_k = k;
    weights.push_back(w);
  }
  return weights;
}

void BenchLinear(Bench& bench, WeightFormat format, int64_t n, int64_t k, uint64_t& key) {
  const std::vector<WeightView> weights = Weights(bench, format, n, k);
  const float* x = bench.Floats(kMaxTokens * k);
  float* y = bench.Floats(kMaxTokens * n);
  const double element = format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBF16 ? 2 : 1;
  const double ceiling = format == WeightFormat::kF32    ? kFloatFlops
                         : format == WeightFormat::kBF16 ? kBf16Flops
                                                         : kFp8Flops;
  for (const int64_t m : {1, 8, 32, 128, 4096}) {
    const double us = bench.Time(++key, [&](int i) {
      bench.device.Linear(
          {.x = x, .ldx = k, .w = weights[i % weights.size()], .y = y, .ldy = n, .m = m});
    });
    bench.Line(fmt::format("Linear {} n {} k {} m {}", Name(format), n, k, m), us,
               element * static_cast<double>(n * k) + 4.0 * static_cast<double>(m * (n + k)),
               2.0 * static_cast<double>(m * n * k), ceiling);
  }
}

// Queries, keys and values of Qwen3-30B-A3B, in one group and one after the other.
void BenchGroup(Bench& bench, uint64_t& key) {
  const int64_t hidden = 2048, widths[] = {4096, 512, 512};
  std::vector<kernels::LinearParams> parts;
  const float* x = bench.Floats(128 * hidden);
  for (const int64_t n : widths) {
    parts.push_back({.x = x,
                     .ldx = hidden,
                     .w = Weights(bench, WeightFormat::kBF16, n, hidden)[0],
                     .y = bench.Floats(128 * n),
                     .ldy = n});
  }
  for (const int64_t m : {1, 32, 128}) {
    for (kernels::LinearParams& p : parts) p.m = m;
    const double n = 5120, k = hidden, rows = static_cast<double>(m);
    for (const bool grouped : {false, true}) {
      const double us = bench.Time(++key, [&](int) {
        if (grouped) return bench.device.LinearGroup(parts);
        for (const kernels::LinearParams& p : parts) bench.device.Linear(p);
      });
      bench.Line(fmt::format("q, k, v {} m {}", grouped ? "in a group" : "in turn", m), us,
                 2 * n * k + 4 * rows * (n + k), 2 * rows * n * k, kBf16Flops);
    }
  }
}

// MLA of DeepSeek-V3 with 16 of its heads.
void BenchHeads(Bench& bench, uint64_t& key) {
  const int64_t heads = 16, nope = 128, lora = 512;
  const std::vector<WeightView> all = Weights(bench, WeightFormat::kBF16, heads * nope, lora);
  std::vector<WeightView> weights;
  for (int64_t h = 0; h < heads; ++h) weights.push_back(all[0].Rows(h * nope, (h + 1) * nope));
  float* x = bench.Floats(kMaxTokens * heads * lora);
  float* y = bench.Floats(kMaxTokens * heads * lora);
  for (const bool transposed : {false, true}) {
    const int64_t in = transposed ? lora : nope, out = transposed ? nope : lora;
    for (const int64_t m : {1, 32, 4096}) {
      const double us = bench.Time(++key, [&](int) {
        bench.device.HeadLinear({.x = x,
                                 .ldx = heads * in,
                                 .head_stride_x = in,
                                 .w = weights,
                                 .transposed = transposed,
                                 .y = y,
                                 .ldy = heads * out,
                                 .head_stride_y = out,
                                 .m = m});
      });
      bench.Line(fmt::format("HeadLinear 16 heads {} to {} m {}", in, out, m), us,
                 static_cast<double>(heads) * (2.0 * static_cast<double>(nope * lora) +
                                               4.0 * static_cast<double>(m * (in + out))),
                 2.0 * static_cast<double>(m * heads * nope * lora), kBf16Flops);
    }
  }
}

void BenchRows(Bench& bench, uint64_t& key) {
  const int64_t n = 7168;
  float* x = bench.Floats(kMaxTokens * n);
  float* y = bench.Floats(kMaxTokens * n);
  const float* weight = bench.Floats(n);
  const auto* ints = reinterpret_cast<const int32_t*>(bench.Floats(kMaxTokens));
  const float* table = bench.Floats(64);
  for (const int64_t m : {1, 32, 4096}) {
    const auto count = static_cast<double>(m * n);
    const auto line = [&](const char* what, double bytes, const std::function<void(int)>& op) {
      bench.Line(fmt::format("{} {} x {}", what, m, n), bench.Time(++key, op), bytes, 0, 1);
    };
    line("RmsNorm", 8 * count, [&](int) {
      bench.device.RmsNorm({.x = x, .ldx = n, .weight = weight, .y = y, .ldy = n, .m = m, .n = n});
    });
    line("RmsNorm of heads of 128", 8 * count, [&](int) {
      bench.device.RmsNorm(
          {.x = x, .ldx = 128, .weight = weight, .y = x, .ldy = 128, .m = m * n / 128, .n = 128});
    });
    line("AddInPlace", 12 * count, [&](int) { bench.device.AddInPlace(y, x, m * n); });
    line("CopyRows", 8 * count,
         [&](int) { bench.device.CopyRows({.x = x, .ldx = n, .y = y, .ldy = n, .m = m, .n = n}); });
    line("StoreKv as bfloat16", 6 * count, [&](int) {
      bench.device.StoreKv(
          {.x = x, .ldx = n, .m = m, .n = n, .slots = ints, .cache = y, .dtype = DType::kBF16});
    });
    line("Rope of heads of 128", 8 * count, [&](int) {
      bench.device.Rope({.x = x,
                         .ldx = n,
                         .m = m,
                         .heads = n / 128,
                         .head_dim = 128,
                         .rotary_dim = 128,
                         .positions = ints,
                         .cos_sin = table});
    });
  }
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  const std::unique_ptr<Device> device = kernels::MakeCudaDevice(
      {.dtype = DType::kBF16, .max_tokens = kMaxTokens, .max_sequences = 1, .max_pages = 1});
  Bench bench{*device, rounds};
  {
    const std::shared_ptr<void> from = device->Allocate(kCopyBytes),
                                to = device->Allocate(kCopyBytes);
    // The op copies faster than the copy engine within one GPU does.
    const int64_t rows = 1 << 14, n = kCopyBytes / 4 / rows;
    const double us = bench.Time(1, [&](int) {
      device->CopyRows({.x = static_cast<const float*>(from.get()),
                        .ldx = n,
                        .y = static_cast<float*>(to.get()),
                        .ldy = n,
                        .m = rows,
                        .n = n});
    });
    bench.copy_rate = 2.0 * kCopyBytes / us * 1e6;
  }
  fmt::print("{}: a copy moves {:.0f} GB/s\n", device->Describe(), bench.copy_rate * 1e-9);
  uint64_t key = 1;
  BenchRows(bench, key);
  BenchHeads(bench, key);
  BenchLinear(bench, WeightFormat::kF32, 256, 7168, key);
  BenchGroup(bench, key);
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    BenchLinear(bench, format, 4096, 2048, key);
    BenchLinear(bench, format, 7168, 16384, key);
  }
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
