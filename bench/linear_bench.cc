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

__attribute__((target("avx512f,avx512vnni"))) float Dot512(int64_t steps) {
  __m512i acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_epi32(c);
  const __m512i x = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbusd_epi32(acc[c], acc[c], x);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_epi32(acc[0], acc[c]);
  int32_t lanes[16];
  _mm512_storeu_si512(lanes, acc[0]);
  return static_cast<float>(lanes[0]);
}

__attribute__((target("avx2"))) float Dot256(int64_t steps) {
  __m256i acc[kNarrowChains];
  for (int c = 0; c < kNarrowChains; ++c) acc[c] = _mm256_set1_epi32(c);
  const __m256i x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kNarrowChains; ++c) {
      const __m256i pairs = _mm256_maddubs_epi16(acc[c], _mm256_sign_epi8(x, acc[c]));
      acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(pairs, ones));
    }
  }
  for (int c = 1; c < kNarrowChains; ++c) acc[0] = _mm256_add_epi32(acc[0], acc[c]);
  return static_cast<float>(_mm256_extract_epi32(acc[0], 0));
}

struct Machine {
  double bandwidth;  // bytes per second
  double peak;       // float32 operations per second, two to an FMA
  double int8_peak;  // likewise, of int8 codes
};

// `loop` runs `per_step` multiplications and additions in each step.
double MeasurePeak(float (*loop)(int64_t), int per_step, ThreadPool& pool) {
  constexpr int64_t kSteps = 1000000;
  std::vector<float> sums(pool.num_threads());
  const double seconds = MedianSeconds(
      [&] { pool.Run(pool.num_threads(), [&](int64_t i) { sums[i] += loop(kSteps); }); });
  volatile float keep = sums[0];  // the loops are not for nothing
  static_cast<void>(keep);
  return 2.0 * kSteps * per_step * pool.num_threads() / seconds;
}

Machine MeasureMachine(ThreadPool& pool) {
  const bool wide = kernels::ActiveIsa() == kernels::Isa::kAvx512;
  const bool vnni = wide && __builtin_cpu_supports("avx512vnni");
  return {.bandwidth = kernels::MeasureReadBandwidth(pool.num_threads()),
          .peak = wide ? MeasurePeak(Fma512, 16 * kChains, pool)
                       : MeasurePeak(Fma256, 8 * kNarrowChains, pool),
          .int8_peak = vnni ? MeasurePeak(Dot512, 64 * kChains, pool)
                            : MeasurePeak(Dot256, 32 * kNarrowChains, pool)};
}

// A number format of weights and of the rows that they are multiplied with.
struct Formats {
  WeightFormat weights;
  ActivationFormat rows = ActivationFormat::kNone;

  bool Int8() const { return rows == ActivationFormat::kInt8Token; }
  std::string Label() const {
    return rows == ActivationFormat::kNone ? std::string(Name(weights))
                                           : fmt::format("{}, {}", Name(weights), Name(rows));
  }
};

// Weights of one format at ever new places of a large pool.
class WeightPool {
 public:
  explicit WeightPool(std::vector<char>& memory) : memory_(memory), scales_(kScaleBytes) {}

  void Fill(const Formats& formats) {
    formats_ = formats;
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
                    .zeros = scales + kScaleBytes / 2,
                    .group_size = 128,
                    .activation = formats_.rows,
                    .stored_k = k,
                    .n = n,
                    .k = k};
    next_ += (bytes + 4095) / 4096 * 4096;
    return w;
  }

  const Formats& formats() const { return formats_; }

 private:
  // Without scales, which are less than a tenth of the whole.
  int64_t Bytes(int64_t n, int64_t k) const {
    return n * k * static_cast<int64_t>(2 * BytesPerWeight(formats_.weights)) / 2;
  }

  std::vector<char>& memory_;
  std::vector<char> scales_;
  Formats formats_ = {WeightFormat::kF32};
  int64_t next_ = 0;
};

void Report(const char* name, const std::string& shape, const Formats& formats, double seconds,
            double weights, double flops, const Machine& machine) {
  const double bytes = weights * BytesPerWeight(formats.weights);
  const double peak = formats.Int8() ? machine.int8_peak : machine.peak;
  const double limit = std::max(bytes / machine.bandwidth, flops / peak);
  fmt::print("{:8} {:28} {:24} {:9.3f} ms {:8.1f} GFLOP/s {:6.1f} GB/s {:4.0f} % of {} roofline\n",
             name, shape, formats.Label(), seconds * 1e3, flops / seconds * 1e-9,
             bytes / seconds * 1e-9, 100 * limit / seconds,
             bytes / machine.bandwidth > flops / peak ? "memory" : "compute");
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
  Report("linear", fmt::format("{} x {} x {}", m, n, k), weights.formats(), seconds, count,
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
  Report("experts", fmt::format("{} tokens, {} experts", m, touched), weights.formats(), seconds,
         each * static_cast<double>(touched), 2.0 * static_cast<double>(m * kTopK) * each, machine);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  using namespace switchyard;
  using W = WeightFormat;
  ThreadPool pool(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
  const Machine machine = MeasureMachine(pool);
  std::vector<char> memory(kPoolBytes);
  WeightPool weights(memory);
  fmt::print("{} threads, {}: reads {:.1f} GB/s, float32 {:.1f} GFLOP/s, int8 {:.1f} GOP/s\n",
             pool.num_threads(), kernels::Name(kernels::ActiveIsa()), machine.bandwidth * 1e-9,
             machine.peak * 1e-9, machine.int8_peak * 1e-9);
  const Formats formats[] = {
      {W::kBF16},       {W::kFp8Block},    {W::kFp8Block, ActivationFormat::kFp8Group},
      {W::kFp8Channel}, {W::kInt8Channel}, {W::kInt8Channel, ActivationFormat::kInt8Token},
      {W::kInt4Group},  {W::kMxfp4},       {W::kNvfp4},
      {W::kF32}};
  for (const Formats& f : formats) {
    weights.Fill(f);
    for (const int64_t m : {1, 8, 32, 512}) {
      BenchLinear(m, kHidden, kHidden, weights, machine, pool);
      if (m <= 32) BenchLinear(m, kVocabulary, kHidden, weights, machine, pool);
      BenchExperts(m, weights, machine, pool);
    }
  }
}
