#include <gtest/gtest.h>

#include "comm/host/heartbeat_watch.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

const Silence::Clock::time_point kStart{std::chrono::hours(1)};

TEST(Silence, GrowsWhileTheCounterStandsStill) {
  Silence silence(milliseconds(200));
  for (int i = 0; i < 5; ++i) silence.Sample(7, kStart + i * milliseconds(100));
  EXPECT_EQ(silence.length(), milliseconds(400));
}

TEST(Silence, EndsWithABeat) {
  Silence silence(milliseconds(200));
  silence.Sample(7, kStart);
  silence.Sample(7, kStart + milliseconds(100));
  silence.Sample(8, kStart + milliseconds(200));
  EXPECT_EQ(silence.length(), milliseconds(0));
  silence.Sample(8, kStart + milliseconds(300));
  EXPECT_EQ(silence.length(), milliseconds(100));
}

TEST(Silence, IgnoresTheTimeInWhichTheObserverWasStopped) {
  Silence silence(milliseconds(200));
  silence.Sample(7, kStart);
  silence.Sample(7, kStart + std::chrono::minutes(10));
  EXPECT_EQ(silence.length(), milliseconds(200));
}

TEST(Silence, DoesNotExpectBeatsOfACounterAtZero) {
  Silence silence(milliseconds(200));
  for (int i = 0; i < 5; ++i) silence.Sample(0, kStart + i * milliseconds(100));
  EXPECT_EQ(silence.length(), milliseconds(0));
}

}  // namespace
}  // namespace switchyard
