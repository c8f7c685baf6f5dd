#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace switchyard {
namespace {

TEST(ThreadPoolTest, EveryIndexRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 7, 100, 1000}) {
      std::vector<std::atomic<int>> hits(n);
      pool.Run(n, [&](int64_t i) { ++hits[i]; });
      for (auto& h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(ThreadPoolTest, RangesCoverEverythingWithoutOverlap) {
  ThreadPool pool(3);
  for (int64_t n : {1, 5, 64, 1001}) {
    std::vector<std::atomic<int>> hits(n);
    pool.RunRanges(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++hits[i];
    });
    for (auto& h : hits) EXPECT_EQ(h, 1);
  }
}

// Writes of a loop are visible after Run. Some loops start right after the previous one, others
// after a pause in which the workers fall asleep.
TEST(ThreadPoolTest, ManyLoopsInARow) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(64);
  for (int round = 0; round < 2000; ++round) {
    pool.Run(64, [&](int64_t i) { sums[i] += i; });
  }
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(sums[i], 2000 * i);
}

}  // namespace
}  // namespace switchyard
