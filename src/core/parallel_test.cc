#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
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

// Writes of a loop are visible after Run.
TEST(ThreadPoolTest, ManyLoopsInARow) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(64);
  for (int round = 0; round < 2000; ++round) {
    pool.Run(64, [&](int64_t i) { sums[i] += i; });
  }
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(sums[i], 2000 * i);
}

// Some loops start right after the previous one, others while the workers fall asleep, and others
// while they sleep. Some end before a worker wakes up.
TEST(ThreadPoolTest, LoopsAfterPauses) {
  ThreadPool pool(3);
  std::vector<int64_t> sums(8);
  for (int round = 0; round < 600; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(round % 3 * 97));
    const int64_t n = 2 + round % 7;
    pool.Run(n, [&](int64_t i) { ++sums[i]; });
    if (round % 5 == 0) pool.Run(n, [&](int64_t i) { --sums[i]; });
    if (round % 5 == 0) pool.Run(n, [&](int64_t i) { ++sums[i]; });
  }
  EXPECT_EQ(sums[0], 600);
  EXPECT_EQ(sums[1], 600);
  EXPECT_LT(sums[7], 600);
}

// Workers that poll for longer take part in loops too, and the pool ends before their time is over.
TEST(ThreadPoolTest, WorkersMayStayAwake) {
  std::vector<int64_t> sums(8);
  {
    ThreadPool pool(3);
    pool.StayAwake(std::chrono::milliseconds(5));
    for (int round = 0; round < 100; ++round) {
      std::this_thread::sleep_for(std::chrono::microseconds(round % 4 * 97));
      if (round == 50) pool.StayAwake(std::chrono::hours(1));
      pool.Run(8, [&](int64_t i) { ++sums[i]; });
    }
  }
  for (const int64_t sum : sums) EXPECT_EQ(sum, 100);
}

// A pool may end while its workers spin or sleep.
TEST(ThreadPoolTest, PoolsEndAtAnyTime) {
  for (int i = 0; i < 40; ++i) {
    ThreadPool pool(3);
    std::atomic<int> hits = 0;
    if (i % 2 == 0) pool.Run(9, [&](int64_t) { ++hits; });
    std::this_thread::sleep_for(std::chrono::microseconds(i % 4 * 83));
    EXPECT_EQ(hits, i % 2 == 0 ? 9 : 0);
  }
}

}  // namespace
}  // namespace switchyard
