// Linear and expert layers of OLMoE-1B-7B's shape on CPUs, and attention (bench/cpu/attention.h).
//
// Weights come from a pool far larger than the L3 cache, from a different position in every
// repetition, so that they are read from memory as in a real step. Between repetitions the threads
// read a part of the pool without computing, which measures the memory bandwidth at that time.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/benches.h"
#include "bench/cpu/attention.h"
#include "bench/cpu/ceilings.h"
#include "bench/cpu/cores.h"
#include "bench/cpu/memory_loops.h"
#include "bench/timing.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "kernels/ops.h"
#include "quant/panels.h"
#include "quant/quantize.h"

namespace switchyard::bench {
namespace {

constexpr int64_t kHidden = 2048, kWidth = 1024, kExperts = 64, kTopK = 8, kVocabulary = 50304;
constexpr int64_t kPoolBytes = int64_t{3} << 29;   // 1.5 GiB
constexpr int64_t kReadBytes = int64_t{1} << 26;   // bytes read at a time between repetitions
constexpr int64_t kScaleBytes = int64_t{1} << 26;  // space for the scales of the largest matrix

// A number format of weights and of the rows that are multiplied with them.
struct Formats {
  WeightFormat weights;
  ActivationFormat rows = ActivationFormat::kNone;

  // Columns that share a scale of int4.
  int32_t Group() const { return HasPanels(weights) ? 32 : 128; }
  double Bytes() const { return BytesPerWeight(weights, Group()); }
  bool Int8() const {
    return rows == ActivationFormat::kInt8Token || rows == ActivationFormat::kInt8Group;
  }
  bool BF16() const { return rows == ActivationFormat::kBFloat16; }
  std::string Label() const {
    return rows == ActivationFormat::kNone ? std::string(Name(weights))
                                           : fmt::format("{}, {}", Name(weights), Name(rows));
  }
};

// Returns weights of one format, each time from a different position in a large pool.
class WeightPool {
 public:
  explicit WeightPool(std::vector<char>& memory) : memory_(memory), scales_(kScaleBytes) {}

  void Fill(const Formats& formats) {
    formats_ = formats;
    next_ = 0;
    if (HasPanels(formats.weights)) return FillPanels();
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values(256 * kHidden);
    for (float& v : values) v = normal(random);
    const WeightView w = Quantize(formats.weights, values, 256, kHidden);
    const auto bytes = Bytes(256, kHidden);
    for (int64_t at = 0; at + bytes <= kPoolBytes; at += bytes) {
      std::memcpy(memory_.data() + at, w.data, bytes);
    }
    switch (formats.weights) {
      case WeightFormat::kMxfp4:
        return std::fill(scales_.begin(), scales_.end(), char{120});
      case WeightFormat::kNvfp4:
        return std::fill(scales_.begin(), scales_.end(), char{0x38});
      default: {
        const float scale = 1.0f / 1024;
        for (int64_t at = 0; at < kScaleBytes; at += 4) std::memcpy(&scales_[at], &scale, 4);
      }
    }
  }

  WeightView Next(int64_t n, int64_t k) {
    const int64_t bytes = Bytes(n, k);
    if (next_ + bytes > kPoolBytes) next_ = 0;
    const char* scales = scales_.data() + next_ / 16 % (kScaleBytes / 4) / 64 * 64;
    WeightView w = {.format = formats_.weights,
                    .data = memory_.data() + next_,
                    .scales = scales,
                    .group_size = formats_.Group(),
                    .activation = formats_.rows,
                    .stored_k = k,
                    .n = n,
                    .k = k};
    next_ += (bytes + 4095) / 4096 * 4096;
    return w;
  }

 private:
  // Fills the pool with bytes that are valid both as codes and as scales, because a panel may begin
  // at any position.
  void FillPanels() {
    std::mt19937 random(1);
    std::vector<char> bytes(1 << 16);
    for (char& byte : bytes) byte = static_cast<char>(0x30 | (random() & 15));
    for (int64_t at = 0; at < kPoolBytes; at += std::ssize(bytes))
      std::memcpy(memory_.data() + at, bytes.data(), bytes.size());
  }

  // Bytes of weights without their scales, which are less than a tenth of the total.
  int64_t Bytes(int64_t n, int64_t k) const {
    if (HasPanels(formats_.weights))
      return PanelMatrixBytes(formats_.weights, formats_.Group(), n, k);
    return n * k * static_cast<int64_t>(2 * BytesPerWeight(formats_.weights)) / 2;
  }

  std::vector<char>& memory_;
  std::vector<char> scales_;
  Formats formats_ = {WeightFormat::kF32};
  int64_t next_ = 0;
};

// State shared by the cases; the first case of a format fills the pool.
struct Bench {
  Report& report;
  ThreadPool& pool;
  const CpuCeilings& ceilings;
  std::vector<char> memory;
  std::optional<WeightPool> weights;
  std::string filled_with;
  int64_t read_at = 0;     // position in `memory`
  double bandwidth = 0.0;  // bandwidth of plain reads during the last case

  // Median seconds of several calls of f. Also sets `bandwidth`, from plain reads of the pool
  // between the calls.
  template <typename F>
  double Seconds(const F& f) {
    std::vector<double> rates;
    const double seconds = MedianSeconds(f, [&] {
      read_at = (read_at + kReadBytes) % kPoolBytes;
      rates.push_back(ReadOnce(pool, memory.data() + read_at, kReadBytes));
    });
    bandwidth = Median(std::move(rates));
    return seconds;
  }

  // False if the case is filtered out; otherwise creates its weights.
  bool Begins(const char* name, const std::string& shape, const Formats& formats) {
    if (!report.Selects(name, shape)) return false;
    report.Start(name, shape);
    if (!weights) {
      memory.resize(kPoolBytes);
      weights.emplace(memory);
    }
    if (filled_with != formats.Label()) weights->Fill(formats);
    filled_with = formats.Label();
    return true;
  }

  void Add(const char* name, const std::string& shape, const Formats& formats, double seconds,
           double count, double flops) const {
    const double bytes = count * formats.Bytes();
    const double peak = formats.Int8()   ? ceilings.int8_peak
                        : formats.BF16() ? ceilings.bf16_peak
                                         : ceilings.peak;
    report.Add({.name = name,
                .shape = shape,
                .seconds = seconds,
                .flops = flops,
                .bytes = bytes,
                .limit = Roofline(bytes, bandwidth, flops, peak),
                .more = {{"plain reads GB/s", bandwidth * 1e-9}}});
  }
};

Tensor Ones(int64_t m, int64_t n) {
  Tensor x = Tensor::Empty(DType::kF32, {m, n});
  std::fill_n(x.data<float>(), m * n, 1.0f);
  return x;
}

void BenchLinear(int64_t m, int64_t n, int64_t k, const Formats& formats, Bench& bench) {
  const std::string shape = fmt::format("{} {} x {} x {}", formats.Label(), m, n, k);
  if (!bench.Begins("linear", shape, formats)) return;
  const Tensor x = Ones(m, k);
  Tensor y = Tensor::Empty(DType::kF32, {m, n});
  const double seconds = bench.Seconds([&] {
    kernels::Linear({.x = x.data<float>(),
                     .ldx = k,
                     .w = bench.weights->Next(n, k),
                     .y = y.data<float>(),
                     .ldy = n,
                     .m = m},
                    bench.pool);
  });
  const auto count = static_cast<double>(n * k);
  bench.Add("linear", shape, formats, seconds, count, 2.0 * static_cast<double>(m) * count);
}

// One layer's routed experts for m tokens with distinct random experts each.
void BenchExperts(int64_t m, const Formats& formats, Bench& bench) {
  const std::string shape =
      fmt::format("{} {} tokens, top-{} of {}", formats.Label(), m, kTopK, kExperts);
  if (!bench.Begins("experts", shape, formats)) return;
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> rows(kExperts);
  std::vector<int32_t> order(kExperts);
  for (int32_t e = 0; e < kExperts; ++e) order[e] = e;
  for (int32_t t = 0; t < m; ++t) {
    std::shuffle(order.begin(), order.end(), random);
    for (int64_t i = 0; i < kTopK; ++i) rows[order[i]].push_back(t);
  }
  std::vector<int32_t> offsets = {0}, row_ids;
  int64_t touched = 0;
  for (const auto& r : rows) {
    row_ids.insert(row_ids.end(), r.begin(), r.end());
    offsets.push_back(static_cast<int32_t>(row_ids.size()));
    touched += r.empty() ? 0 : 1;
  }
  const Tensor x = Ones(m, kHidden);
  Tensor scratch = Tensor::Empty(DType::kF32, {m * kTopK, kWidth});
  Tensor out = Tensor::Empty(DType::kF32, {m * kTopK, kHidden});
  std::vector<kernels::ExpertWeights> experts(kExperts);
  const double seconds = bench.Seconds([&] {
    for (size_t e = 0; e < experts.size(); ++e) {
      if (rows[e].empty()) continue;
      experts[e].gate = bench.weights->Next(kWidth, kHidden);
      experts[e].up = bench.weights->Next(kWidth, kHidden);
      experts[e].down = bench.weights->Next(kHidden, kWidth);
    }
    kernels::GroupedMlp({.x = x.data<float>(),
                         .ldx = kHidden,
                         .row_ids = row_ids.data(),
                         .experts = experts,
                         .offsets = offsets,
                         .scratch = scratch.data<float>(),
                         .out = out.data<float>(),
                         .ldo = kHidden},
                        bench.pool);
  });
  const double each = 3.0 * kHidden * kWidth;
  bench.Add("experts", shape, formats, seconds, each * static_cast<double>(touched),
            2.0 * static_cast<double>(m * kTopK) * each);
}

}  // namespace

void CpuKernels(const Options& options, Report& report) {
  using W = WeightFormat;
  ThreadPool pool(options.threads > 0 ? options.threads : CoreCount());
  const CpuCeilings ceilings = MeasureCpu(pool.num_threads(), report);
  Bench bench{report, pool, ceilings};
  const Formats formats[] = {{W::kBF16},
                             {W::kBF16, ActivationFormat::kBFloat16},
                             {W::kFp8Block},
                             {W::kFp8Block, ActivationFormat::kBFloat16},
                             {W::kFp8Block, ActivationFormat::kFp8Group},
                             {W::kFp8Channel},
                             {W::kInt8Channel},
                             {W::kInt8Channel, ActivationFormat::kInt8Token},
                             {W::kInt4Group},
                             {W::kInt4Group, ActivationFormat::kInt8Group},
                             {W::kMxfp4},
                             {W::kMxfp4, ActivationFormat::kInt8Group},
                             {W::kNvfp4},
                             {W::kNvfp4, ActivationFormat::kInt8Group},
                             {W::kInt4ZeroPanels, ActivationFormat::kInt8Group},
                             {W::kMxfp4Panels, ActivationFormat::kInt8Group},
                             {W::kNvfp4Panels, ActivationFormat::kInt8Group},
                             {W::kQ8_0Panels, ActivationFormat::kInt8Group},
                             {W::kQ4KPanels, ActivationFormat::kInt8Group},
                             {W::kQ5KPanels, ActivationFormat::kInt8Group},
                             {W::kQ6KPanels, ActivationFormat::kInt8Group},
                             {W::kIQ4XSPanels, ActivationFormat::kInt8Group},
                             {W::kF32}};
  for (const Formats& f : formats) {
    for (const int64_t m : {1, 8, 32, 512}) {
      BenchLinear(m, kHidden, kHidden, f, bench);
      if (m <= 32) BenchLinear(m, kVocabulary, kHidden, f, bench);
      BenchExperts(m, f, bench);
    }
  }
  BenchAttention(ceilings, pool, report);
}

}  // namespace switchyard::bench
