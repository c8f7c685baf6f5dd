#include "bench/cpu/peaks.h"

#include <immintrin.h>

#include <algorithm>

#include "bench/timing.h"
#include "core/check.h"

namespace switchyard::bench {
namespace {

// Numbers of independent chains of instructions: enough to keep both FMA units busy, and few enough
// for the registers.
constexpr int kChains = 16, kNarrowChains = 12;

// Makes the compiler assume that x is read.
template <typename T>
void Use(const T& x) {
  asm volatile("" ::"r"(&x) : "memory");
}

__attribute__((target("avx512f"))) void Float512(int64_t steps) {
  __m512 acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512 x = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(acc[c], x, x);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_ps(acc[0], acc[c]);
  Use(acc[0]);
}

__attribute__((target("avx2,fma"))) void Float256(int64_t steps) {
  __m256 acc[kNarrowChains];
  for (int c = 0; c < kNarrowChains; ++c) acc[c] = _mm256_set1_ps(static_cast<float>(c));
  const __m256 x = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kNarrowChains; ++c) acc[c] = _mm256_fmadd_ps(acc[c], x, x);
  }
  for (int c = 1; c < kNarrowChains; ++c) acc[0] = _mm256_add_ps(acc[0], acc[c]);
  Use(acc[0]);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void BF16Dot512(int64_t steps) {
  __m512 acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], x, x);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_ps(acc[0], acc[c]);
  Use(acc[0]);
}

__attribute__((target("avx512f,avx512vnni"))) void Int8Dot512(int64_t steps) {
  __m512i acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_epi32(c);
  const __m512i x = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbusd_epi32(acc[c], x, x);
  }
  for (int c = 1; c < kChains; ++c) acc[0] = _mm512_add_epi32(acc[0], acc[c]);
  Use(acc[0]);
}

// int8 products as in the AVX2 kernels: pairs of 16-bit products are added to int32 sums.
__attribute__((target("avx2"))) void Int8Dot256(int64_t steps) {
  __m256i acc[kNarrowChains];
#pragma GCC unroll 16
  for (int c = 0; c < kNarrowChains; ++c) acc[c] = _mm256_set1_epi32(c);
  const __m256i x = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kNarrowChains; ++c) {  // asm, because GCC 12 spills the sums of intrinsics
      __m256i pairs;
      asm("vpmaddwd %2, %0, %1\n\tvpaddd %1, %0, %0" : "+x"(acc[c]), "=&x"(pairs) : "x"(x));
    }
  }
  __m256i sum = acc[0];
#pragma GCC unroll 16
  for (int c = 1; c < kNarrowChains; ++c) sum = _mm256_add_epi32(sum, acc[c]);
  Use(sum);
}

}  // namespace

std::vector<PeakLoop> PeakLoops() {
  constexpr double kMultiplyAdd = 2;
  std::vector<PeakLoop> loops;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    loops.push_back(
        {"float32 avx2", "vfmadd, 256 bits", kMultiplyAdd * 8 * kNarrowChains, Float256});
  }
  if (__builtin_cpu_supports("avx512f")) {
    loops.push_back({"float32 avx512", "vfmadd, 512 bits", kMultiplyAdd * 16 * kChains, Float512});
  }
  if (__builtin_cpu_supports("avx512bf16")) {
    loops.push_back(
        {"bfloat16 avx512", "vdpbf16ps, 512 bits", kMultiplyAdd * 32 * kChains, BF16Dot512});
  }
  if (__builtin_cpu_supports("avx2")) {
    loops.push_back(
        {"int8 avx2", "vpmaddwd, 256 bits", kMultiplyAdd * 16 * kNarrowChains, Int8Dot256});
  }
  if (__builtin_cpu_supports("avx512vnni")) {
    loops.push_back({"int8 avx512", "vpdpbusd, 512 bits", kMultiplyAdd * 64 * kChains, Int8Dot512});
  }
  AddAmxPeakLoops(loops);
  return loops;
}

const PeakLoop& FindPeakLoop(const std::vector<PeakLoop>& loops, std::string_view name) {
  const auto found = std::ranges::find(loops, name, &PeakLoop::name);
  CHECK(found != loops.end());
  return *found;
}

double LeastSeconds(const PeakLoop& loop, int64_t steps, ThreadPool& pool) {
  constexpr double kSeconds = 0.2;
  constexpr int kFewest = 5;
  double least = 0.0;
  const auto start = Clock::now();
  for (int i = 0; i < kFewest || SecondsSince(start) < kSeconds; ++i) {
    const auto begin = Clock::now();
    pool.Run(pool.num_threads(), [&](int64_t) { loop.run(steps); });
    const double seconds = SecondsSince(begin);
    least = i == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

double MeasurePeak(const PeakLoop& loop, ThreadPool& pool) {
  constexpr int64_t kSteps = 200'000;
  return loop.operations * kSteps * pool.num_threads() / LeastSeconds(loop, kSteps, pool);
}

}  // namespace switchyard::bench
