#include "comm/host/heartbeat_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kLong(60'000);
constexpr size_t kBytes = 4096;

// Rank 0 does not serve. Rank 1 has a heartbeat counter that does not change. Rank 2 has
// heartbeats.
class HeartbeatWatchTest : public ::testing::Test {
 protected:
  HeartbeatWatchTest() {
    one_.StartHeartbeat();
    two_.StartHeartbeat();
    beater_ = std::jthread([this](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(milliseconds(1))) two_.Beat();
    });
  }

  void Report(const RankSilence& silence) {
    const std::lock_guard lock(mutex_);
    reports_.push_back(silence);
    changed_.notify_all();
  }
  RankSilence FirstReport() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLong, [this] { return !reports_.empty(); }));
    return reports_.empty() ? RankSilence{} : reports_.front();
  }

  std::shared_ptr<SharedArena> arena_ = SharedArena::Create(3, kBytes);
  SymmetricMemory one_{arena_, 1, {}}, two_{arena_, 2, {}};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RankSilence> reports_;
  std::jthread beater_;
};

TEST_F(HeartbeatWatchTest, ReportsTheRankThatDoesNotBeat) {
  HeartbeatWatch watch(arena_, {0, 1, 2}, milliseconds(500),
                       [this](const RankSilence& silence) { Report(silence); });
  const RankSilence silence = FirstReport();
  EXPECT_EQ(silence.rank, 1);
  EXPECT_GE(silence.length, milliseconds(500));
  EXPECT_THAT(silence.Reason(),
              AllOf(HasSubstr("rank 1 sent no heartbeat for "), HasSubstr("--watchdog-timeout")));
  EXPECT_EQ(watch.Longest().rank, 1);
}

TEST_F(HeartbeatWatchTest, ABeatEndsTheSilence) {
  HeartbeatWatch watch(arena_, {1}, milliseconds(200),
                       [this](const RankSilence& silence) { Report(silence); });
  EXPECT_EQ(FirstReport().rank, 1);
  const auto give_up = std::chrono::steady_clock::now() + kLong;
  int silent = 1;
  while (silent == 1 && std::chrono::steady_clock::now() < give_up) {
    one_.Beat();
    std::this_thread::sleep_for(milliseconds(1));
    silent = watch.Longest().rank;
  }
  EXPECT_EQ(silent, -1);
}

TEST_F(HeartbeatWatchTest, WithoutATimeoutNoRankIsReported) {
  HeartbeatWatch watch(arena_, {1}, milliseconds(0),
                       [this](const RankSilence& silence) { Report(silence); });
  const auto give_up = std::chrono::steady_clock::now() + kLong;
  while (watch.Longest().rank != 1 && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(milliseconds(1));
  watch.Stop();
  EXPECT_TRUE(reports_.empty());
}

TEST(HeartbeatWatch, StopReleasesTheArena) {
  auto arena = SharedArena::Create(2, kBytes);
  const std::weak_ptr<SharedArena> observer = arena;
  HeartbeatWatch watch(std::move(arena), {0, 1}, milliseconds(500), [](const RankSilence&) {});
  EXPECT_FALSE(observer.expired());
  watch.Stop();
  EXPECT_TRUE(observer.expired());
  EXPECT_EQ(watch.Longest().rank, -1);
}

TEST(RankSilence, NamesTheProcessIfItIsKnown) {
  EXPECT_EQ((RankSilence{.rank = 1, .pid = 4711}).Name(), "rank 1 (pid 4711)");
  EXPECT_EQ((RankSilence{.rank = 1, .length = std::chrono::seconds(300)}).Reason(),
            "rank 1 sent no heartbeat for 300 s (--watchdog-timeout)");
}

}  // namespace
}  // namespace switchyard
