// Products and expert layers of OLMoE-1B-7B's shape against the machine's limits: one line for each
// case with the median time and the fraction of the roofline max(bytes / bandwidth, flops / peak).
//
//   linear_bench [threads]
//
// Weights come from a pool far larger than the L3 cache, at another place in every repetition, so
// that they are read from memory as in a real step.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "kernels/ops.h"
#include "kernels/roofline.h"
#include "quant/quantize.h"

namespace switchyard {
namespace {

constexpr int64_t kHidden = 2048, kWidth = 1024, kExperts = 64, kTopK = 8, kVocabulary = 50304;
constexpr int64_t kPoolBytes = int64_t{3} << 29;   // 1.5 GiB
constexpr int64_t kScaleBytes = int64_t{1} << 26;  // holds the scales of any matrix used

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median of repetitions over about half a second, at least 3.
template <typename F>
double MedianSeconds(const F& f) {
  f();
  std::vector<double> times;
  const double start = Seconds();
  while (times.size() < 3 || (Seconds() - start < 0.5 && times.size() < 1000)) {
    const double begin = Seconds();
    f();
    times.push_back(Seconds() - begin);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Independent chains that keep both FMA units busy, as many as registers allow.
constexpr int kChains = 16, kNarrowChains = 12;

__attribute__((target("avx512f"))) float Fma512(int64_t steps) {
  __m512 acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512 x = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(acc[c], x, x);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_ps(acc[0], acc[c]);
  return _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx2,fma"))) float Fma256(int64_t steps) {
  __m256 acc[kNarrowChains];
  for (int c = 0; c < kNarrowChains; ++c) acc[c] = _mm256_set1_ps(static_cast<float>(c));
  const __m256 x = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kNarrowChains; ++c) acc[c] = _mm256_fmadd_ps(acc[c], x, x);
  }
  for (int c = 1; c < kNarrowChains; ++c) acc[0] = _mm256_add_ps(acc[0], acc[c]);
  return _mm256_cvtss_f32(acc[0]);
}

struct Machine {
  double bandwidth;  // bytes per second
  double peak;       // float32 operations per second, two to an FMA
};

double MeasurePeak(ThreadPool& pool) {
  const bool wide = kernels::ActiveIsa() == kernels::Isa::kAvx512;
  constexpr int64_t kSteps = 1000000;
  std::vector<float> sums(pool.num_threads());
  const double seconds = MedianSeconds([&] {
    pool.Run(pool.num_threads(),
             [&](int64_t i) { sums[i] += wide ? Fma512(kSteps) : Fma256(kSteps); });
  });
  volatile float keep = sums[0];  // the loops are not for nothing
  static_cast<void>(keep);
  const int per_step = wide ? 16 * kChains : 8 * kNarrowChains;
  return 2.0 * kSteps * per_step * pool.num_threads() / seconds;
}

// Weights of one format at ever new places of a large pool.
class WeightPool {
 public:
  explicit WeightPool(std::vector<char>& memory) : memory_(memory), scales_(kScaleBytes) {}

  void Fill(WeightFormat format) {
    format_ = format;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values(256 * kHidden);
    for (float& v : values) v = normal(random);
    const WeightView w = Quantize(format, values, 256, kHidden);
    const auto bytes = Bytes(256, kHidden);
    for (int64_t at = 0; at + bytes <= kPoolBytes; at += bytes) {
      std::memcpy(memory_.data() + at, w.data, bytes);
    }
    if (format == WeightFormat::kMxfp4) std::fill(scales_.begin(), scales_.end(), char{120});
    if (format == WeightFormat::kFp8Block) {
      const float scale = 1.0f / 1024;
      for (int64_t at = 0; at < kScaleBytes; at += 4) std::memcpy(&scales_[at], &scale, 4);
    }
  }

  WeightView Next(int64_t n, int64_t k) {
    const int64_t bytes = Bytes(n, k);
    if (next_ + bytes > kPoolBytes) next_ = 0;
    WeightView w = {.format = format_,
                    .data = memory_.data() + next_,
                    .scales = scales_.data() + next_ / 16 % (kScaleBytes / 2) / 64 * 64,
                    .stored_k = k,
                    .n = n,
                    .k = k};
    next_ += (bytes + 4095) / 4096 * 4096;
    return w;
  }

  WeightFormat format() const { return format_; }

 private:
  int64_t Bytes(int64_t n, int64_t k) const {
    switch (format_) {
      case WeightFormat::kF32:
        return n * k * 4;
      case WeightFormat::kBF16:
      case WeightFormat::kF16:
        return n * k * 2;
      case WeightFormat::kFp8Block:
        return n * k;
      case WeightFormat::kMxfp4:
        return n * k / 2;
    }
    return 0;
  }

  std::vector<char>& memory_;
  std::vector<char> scales_;
  WeightFormat format_ = WeightFormat::kF32;
  int64_t next_ = 0;
};

void Report(const char* name, const std::string& shape, WeightFormat format, double seconds,
            double weights, double flops, const Machine& machine) {
  const double bytes = weights * BytesPerWeight(format);
  const double limit = std::max(bytes / machine.bandwidth, flops / machine.peak);
  fmt::print("{:8} {:28} {:10} {:9.3f} ms {:8.1f} GFLOP/s {:6.1f} GB/s {:4.0f} % of {} roofline\n",
             name, shape, Name(format), seconds * 1e3, flops / seconds * 1e-9,
             bytes / seconds * 1e-9, 100 * limit / seconds,
             bytes / machine.bandwidth > flops / machine.peak ? "memory" : "compute");
  std::fflush(stdout);
}

Tensor Ones(int64_t m, int64_t n) {
  Tensor x = Tensor::Empty(DType::kF32, {m, n});
  std::fill_n(x.data<float>(), m * n, 1.0f);
  return x;
}

void BenchLinear(int64_t m, int64_t n, int64_t k, WeightPool& weights, const Machine& machine,
                 ThreadPool& pool) {
  const Tensor x = Ones(m, k);
  Tensor y = Tensor::Empty(DType::kF32, {m, n});
  const double seconds = MedianSeconds([&] {
    kernels::Linear({.x = x.data<float>(),
                     .ldx = k,
                     .w = weights.Next(n, k),
                     .y = y.data<float>(),
                     .ldy = n,
                     .m = m},
                    pool);
  });
  const auto count = static_cast<double>(n * k);
  Report("linear", fmt::format("{} x {} x {}", m, n, k), weights.format(), seconds, count,
         2.0 * static_cast<double>(m) * count, machine);
}

// One layer's routed experts for m tokens with distinct random experts each.
void BenchExperts(int64_t m, WeightPool& weights, const Machine& machine, ThreadPool& pool) {
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
  const double seconds = MedianSeconds([&] {
    for (size_t e = 0; e < experts.size(); ++e) {
      if (rows[e].empty()) continue;
      experts[e].gate = weights.Next(kWidth, kHidden);
      experts[e].up = weights.Next(kWidth, kHidden);
      experts[e].down = weights.Next(kHidden, kWidth);
    }
    kernels::GroupedMlp({.x = x.data<float>(),
                         .ldx = kHidden,
                         .row_ids = row_ids.data(),
                         .experts = experts,
                         .offsets = offsets,
                         .scratch = scratch.data<float>(),
                         .out = out.data<float>(),
                         .ldo = kHidden},
                        pool);
  });
  const double each = 3.0 * kHidden * kWidth;
  Report("experts", fmt::format("{} tokens, {} experts", m, touched), weights.format(), seconds,
         each * static_cast<double>(touched), 2.0 * static_cast<double>(m * kTopK) * each, machine);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;
  ThreadPool pool(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
  const Machine machine = {.bandwidth = kernels::MeasureReadBandwidth(pool.num_threads()),
                           .peak = MeasurePeak(pool)};
  std::vector<char> memory(kPoolBytes);
  WeightPool weights(memory);
  fmt::print("{} threads, {}: reads {:.1f} GB/s, float32 {:.1f} GFLOP/s\n", pool.num_threads(),
             kernels::Name(kernels::ActiveIsa()), machine.bandwidth * 1e-9, machine.peak * 1e-9);
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4, WeightFormat::kF32}) {
    weights.Fill(format);
    for (const int64_t m : {1, 8, 32, 512}) {
      BenchLinear(m, kHidden, kHidden, weights, machine, pool);
      if (m <= 32) BenchLinear(m, kVocabulary, kHidden, weights, machine, pool);
      BenchExperts(m, weights, machine, pool);
    }
  }
}
