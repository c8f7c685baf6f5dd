#include "kernels/cpu/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

namespace switchyard::kernels::cpu {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kMuch = int64_t{1} << 30;  // more work than one thread computes alone

TEST(RunFromBothEndsTest, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 2, 3, 64, 1000}) {
      for (const int64_t work : {int64_t{0}, kMuch}) {
        std::vector<std::atomic<int>> runs(n);
        RunFromBothEnds(pool, n, work, [&](int64_t task, int64_t next) {
          ++runs[task];
          EXPECT_GE(next, -1);
          EXPECT_LT(next, n);
          EXPECT_NE(next, task);
        });
        for (const std::atomic<int>& times : runs) EXPECT_EQ(times, 1) << threads << " threads";
      }
    }
  }
}

TEST(RunFromBothEndsTest, ASingleThreadGetsTheNextTask) {
  ThreadPool pool(1);
  std::vector<std::pair<int64_t, int64_t>> calls;
  const auto call = [&](int64_t task, int64_t next) { calls.emplace_back(task, next); };
  RunFromBothEnds(pool, 3, kMuch, call);
  EXPECT_THAT(calls, ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, -1)));
}

TEST(RunFromBothEndsTest, LittleWorkRunsOnTheCallingThread) {
  ThreadPool pool(3);
  std::vector<std::pair<int64_t, int64_t>> calls;  // without a lock
  const auto call = [&](int64_t task, int64_t next) { calls.emplace_back(task, next); };
  RunFromBothEnds(pool, 3, 2 * kTaskWork - 1, call);
  EXPECT_THAT(calls, ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, -1)));
}

// A thread that starts at the front blocks in its first task until the last task has started. Only
// a thread that starts at the back can run that one meanwhile.
TEST(RunFromBothEndsTest, ThreadsBeginAtBothEnds) {
  ThreadPool pool(2);
  std::atomic<bool> last_began = false;
  RunFromBothEnds(pool, 100, kMuch, [&](int64_t task, int64_t next) {
    if (task == 99) {
      EXPECT_EQ(next, 98);
      last_began = true;
      last_began.notify_all();
    }
    if (task == 0 && next == 1) last_began.wait(false);
  });
  EXPECT_TRUE(last_began);
}

}  // namespace
}  // namespace switchyard::kernels::cpu
