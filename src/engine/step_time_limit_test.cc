#include "engine/step_time_limit.h"

#include <gtest/gtest.h>

#include <vector>

namespace switchyard {
namespace {

using namespace std::chrono_literals;

TEST(StepTimeLimitTest, WithoutMeasurementsItIsLong) {
  EXPECT_EQ(StepTimeLimit().Of(1), StepTimeLimit::kUnmeasured);
  EXPECT_EQ(StepTimeLimit().Of(2048), StepTimeLimit::kUnmeasured);
}

TEST(StepTimeLimitTest, SmallStepsGetTwiceTheTimeOfTheSlowest) {
  StepTimeLimit time_limit;
  time_limit.Observe(5, 30ms);
  time_limit.Observe(5, 10ms);
  EXPECT_NEAR(static_cast<double>(time_limit.Of(40).count()), 59, 2);
}

TEST(StepTimeLimitTest, LargeStepsAreScaledByTheirRows) {
  StepTimeLimit time_limit;
  time_limit.Observe(5, 10ms);
  EXPECT_EQ(time_limit.Of(1000), 20'020ms);  // not measured yet
  time_limit.Observe(500, 1000ms);
  EXPECT_EQ(time_limit.Of(1000), 4'020ms);
  EXPECT_EQ(time_limit.Of(2000), 8'020ms);
}

TEST(StepTimeLimitTest, TheWeightOfASlowStepDecays) {
  StepTimeLimit time_limit;
  time_limit.Observe(5, 10s);
  for (int i = 0; i < 1000; ++i) time_limit.Observe(5, 10ms);
  EXPECT_EQ(time_limit.Of(5), 20ms);
}

TEST(StepTimeLimitTest, RowsOfLogitsCountMore) {
  const std::vector<StepCounts> groups{{.tokens = 10, .logit_rows = 1}, {.tokens = 3}};
  EXPECT_EQ(StepTimeLimit::RowsOf(groups), 17);
}

}  // namespace
}  // namespace switchyard
