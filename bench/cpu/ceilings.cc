#include "bench/cpu/ceilings.h"

#include <fmt/format.h>
#include <immintrin.h>

#include <vector>

#include "bench/timing.h"
#include "core/parallel.h"
#include "kernels/ops.h"
#include "kernels/roofline.h"

namespace switchyard::bench {
namespace {

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

}  // namespace

CpuCeilings MeasureCpu(int threads, Report& report) {
  ThreadPool pool(threads);
  const bool wide = kernels::ActiveIsa() == kernels::Isa::kAvx512;
  const bool vnni = wide && __builtin_cpu_supports("avx512vnni");
  const CpuCeilings ceilings = {.bandwidth = kernels::MeasureReadBandwidth(threads),
                                .peak = wide ? MeasurePeak(Fma512, 16 * kChains, pool)
                                             : MeasurePeak(Fma256, 8 * kNarrowChains, pool),
                                .int8_peak = vnni ? MeasurePeak(Dot512, 64 * kChains, pool)
                                                  : MeasurePeak(Dot256, 32 * kNarrowChains, pool)};
  report.Note(fmt::format("{} threads, {}", threads, kernels::Name(kernels::ActiveIsa())));
  report.Machine("reads from memory", ceilings.bandwidth * 1e-9, "GB/s");
  report.Machine("float32", ceilings.peak * 1e-9, "GFLOP/s");
  report.Machine("int8", ceilings.int8_peak * 1e-9, "GOP/s");
  return ceilings;
}

}  // namespace switchyard::bench
