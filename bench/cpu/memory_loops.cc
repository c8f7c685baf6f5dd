#include "bench/cpu/memory_loops.h"

#include <algorithm>
#include <cstring>

#include "bench/timing.h"
#include "kernels/roofline.h"

namespace switchyard::bench {
namespace {

constexpr int64_t kLine = 64;
constexpr int kTimes = 5;

// Reading one word per line fetches the whole cache line, and arithmetic does not limit the rate.
uint64_t SumLines(const char* begin, int64_t bytes, int64_t ahead) {
  uint64_t sum = 0;
  const auto add = [&](int64_t at) {
    uint64_t word = 0;
    std::memcpy(&word, begin + at, sizeof word);
    sum += word;
  };
  if (ahead == 0) {
    for (int64_t at = 0; at < bytes; at += kLine) add(at);
    return sum;
  }
  for (int64_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(begin + at + ahead, 0, 2);
    add(at);
  }
  return sum;
}

using Vector = uint64_t __attribute__((vector_size(64)));

// Cloned for CPUs with wide vectors, because wider loads double the bandwidth of a cache.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t SumVectors(const char* begin,
                                                                                 int64_t bytes) {
  constexpr int kSums = 8;
  Vector sums[kSums] = {};
  for (int64_t at = 0; at + kSums * kLine <= bytes; at += kSums * kLine) {
#pragma GCC unroll 8
    for (int s = 0; s < kSums; ++s) {
      sums[s] ^= *reinterpret_cast<const Vector*>(begin + at + s * kLine);
    }
  }
  for (int s = 1; s < kSums; ++s) sums[0] ^= sums[s];
  return sums[0][0];
}

void Use(uint64_t value) { asm volatile("" ::"r"(value)); }

}  // namespace

void ReadLines(const void* begin, int64_t bytes, int64_t ahead) {
  Use(SumLines(static_cast<const char*>(begin), bytes, ahead));
}

double ReadOnce(ThreadPool& pool, const void* begin, int64_t bytes) {
  const int64_t part = bytes / pool.num_threads() / kLine * kLine;
  const auto start = Clock::now();
  pool.Run(pool.num_threads(), [&](int64_t i) {
    ReadLines(static_cast<const char*>(begin) + i * part, part, kernels::kReadPrefetchDistance);
  });
  return static_cast<double>(part * pool.num_threads()) / SecondsSince(start);
}

MemoryLoops::MemoryLoops(ThreadPool& pool, int64_t bytes) : pool_(pool), bytes_(bytes) {
  for (int i = 0; i < pool.num_threads(); ++i) {
    buffers_.push_back(Tensor::Empty(DType::kU8, {bytes}));
  }
  Best(0, [&](char* buffer) { std::memset(buffer, 1, bytes); });
}

template <typename Body>
double MemoryLoops::Best(double bytes, const Body& body) {
  double least = 0.0;
  for (int time = 0; time < kTimes; ++time) {
    const auto start = Clock::now();
    pool_.Run(pool_.num_threads(),
              [&](int64_t i) { body(static_cast<char*>(buffers_[i].mutable_raw())); });
    const double seconds = SecondsSince(start);
    least = time == 0 ? seconds : std::min(least, seconds);
  }
  return bytes * pool_.num_threads() / least;
}

double MemoryLoops::Read(int64_t ahead) {
  return Best(static_cast<double>(bytes_),
              [&](const char* buffer) { ReadLines(buffer, bytes_, ahead); });
}

double MemoryLoops::ReadAgain(int64_t bytes) {
  constexpr int64_t kBytesAtOnce = int64_t{1} << 28;
  const int64_t times = std::max<int64_t>(1, kBytesAtOnce / bytes);
  return Best(static_cast<double>(bytes * times), [&](const char* buffer) {
    for (int64_t i = 0; i < times; ++i) Use(SumVectors(buffer, bytes));
  });
}

double MemoryLoops::Copy() {
  const int64_t half = bytes_ / 2;
  return Best(static_cast<double>(2 * half),
              [&](char* buffer) { std::memcpy(buffer + half, buffer, half); });
}

double MemoryLoops::Fill() {
  return Best(static_cast<double>(bytes_), [&](char* buffer) {
    std::memset(buffer, 1, bytes_);
    asm volatile("" ::"r"(buffer) : "memory");
  });
}

}  // namespace switchyard::bench
