#include "engine/step_allowance.h"

#include <gtest/gtest.h>

#include <vector>

namespace switchyard {
namespace {

using namespace std::chrono_literals;

TEST(StepAllowanceTest, WithoutMeasurementsItIsLong) {
  EXPECT_EQ(StepAllowance().Of(1), StepAllowance::kUnmeasured);
  EXPECT_EQ(StepAllowance().Of(2048), StepAllowance::kUnmeasured);
}

TEST(StepAllowanceTest, SmallStepsGetTwiceTheTimeOfTheSlowest) {
  StepAllowance allowance;
  allowance.Observe(5, 30ms);
  allowance.Observe(5, 10ms);
  EXPECT_NEAR(static_cast<double>(allowance.Of(40).count()), 59, 2);
}

TEST(StepAllowanceTest, LargeStepsAreScaledByTheirRows) {
  StepAllowance allowance;
  allowance.Observe(5, 10ms);
  EXPECT_EQ(allowance.Of(1000), 20'020ms);  // not measured yet
  allowance.Observe(500, 1000ms);
  EXPECT_EQ(allowance.Of(1000), 4'020ms);
  EXPECT_EQ(allowance.Of(2000), 8'020ms);
}

TEST(StepAllowanceTest, AStepThatWasSlowOnceIsForgotten) {
  StepAllowance allowance;
  allowance.Observe(5, 10s);
  for (int i = 0; i < 1000; ++i) allowance.Observe(5, 10ms);
  EXPECT_EQ(allowance.Of(5), 20ms);
}

TEST(StepAllowanceTest, RowsOfLogitsCountMore) {
  const std::vector<StepCounts> groups{{.tokens = 10, .logit_rows = 1}, {.tokens = 3}};
  EXPECT_EQ(StepAllowance::RowsOf(groups), 17);
}

}  // namespace
}  // namespace switchyard
