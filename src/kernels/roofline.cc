#include "kernels/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"

namespace switchyard::kernels {
namespace {

constexpr int64_t kBytesPerThread = int64_t{512} << 20;  // exceeds a shared L3 of some hundred MB
constexpr int64_t kLine = 64;
constexpr int kPasses = 4;

// One load per line is enough to fetch it, and keeps arithmetic from limiting the rate.
uint64_t SumLines(const char* begin, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(begin + at + kReadPrefetchDistance, 0, 2);
    uint64_t word = 0;
    std::memcpy(&word, begin + at, sizeof word);
    sum += word;
  }
  return sum;
}

}  // namespace

double MeasureReadBandwidth(int threads) {
  std::vector<Tensor> buffers;
  buffers.reserve(threads);
  for (int i = 0; i < threads; ++i) buffers.push_back(Tensor::Empty(DType::kU8, {kBytesPerThread}));
  ThreadPool pool(threads);
  pool.Run(threads, [&](int64_t i) { std::memset(buffers[i].mutable_raw(), 1, kBytesPerThread); });
  std::vector<uint64_t> sums(threads);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run(threads, [&](int64_t i) {
      sums[i] += SumLines(static_cast<const char*>(buffers[i].raw()), kBytesPerThread);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(kBytesPerThread) * threads / seconds);
  }
  // This use of the sums keeps the compiler from removing the loads. The buffers hold ones, so a
  // sum is never zero.
  return sums[0] == 0 ? 0.0 : best;
}

}  // namespace switchyard::kernels
