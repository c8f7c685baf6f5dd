#include "train/run/step_rule.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace switchyard::train {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Steps with a loss and norm that alternate around 2 and 1, with a standard deviation of 0.1.
StepHistory Calm(const StepRuleOptions& options, size_t steps) {
  StepHistory history;
  for (size_t i = 0; i < steps; ++i) {
    const double offset = i % 2 == 0 ? 0.1 : -0.1;
    EXPECT_EQ(ReasonToSkip(options, 2 + offset, 1 + offset, "", &history), "") << i;
  }
  return history;
}

TEST(StepRuleTest, SpikesOfLossAndGradientNormAreSkipped) {
  const StepRuleOptions options{.spike_sigmas = 6};
  StepHistory history = Calm(options, 40);
  EXPECT_EQ(ReasonToSkip(options, 2.59, 1.59, "", &history), "");
  EXPECT_THAT(ReasonToSkip(options, 2.9, 1, "", &history),
              HasSubstr("the loss 2.9 exceeds the mean 2.014 of the last 41 steps by more than 6"));
  EXPECT_EQ(history.skipped, 1);
  EXPECT_THAT(ReasonToSkip(options, 2, 3, "", &history), HasSubstr("the gradient norm 3 exceeds"));
  EXPECT_EQ(history.skipped, 2);
  EXPECT_EQ(ReasonToSkip(options, 0.1, 0.1, "", &history), "");  // low values are no spikes
  EXPECT_EQ(history.skipped, 0);
}

TEST(StepRuleTest, FewStepsAndDisabledRulesSkipNothing) {
  const StepRuleOptions options{.spike_sigmas = 6};
  StepHistory history = Calm(options, StepHistory::kLeast - 1);
  EXPECT_EQ(ReasonToSkip(options, 1e9, 1, "", &history), "");
  history = Calm({}, 200);
  EXPECT_TRUE(history.losses.empty());
  EXPECT_EQ(ReasonToSkip({}, 1e9, 1e9, "", &history), "");
}

TEST(StepRuleTest, TheRuleAdaptsToALastingChange) {
  const StepRuleOptions options{.spike_sigmas = 6};
  StepHistory history = Calm(options, 300);
  EXPECT_EQ(history.losses.size(), StepHistory::kWindow);
  int skipped = 0;
  while (!ReasonToSkip(options, 9, 1, "", &history).empty()) ++skipped;
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 10);
}

TEST(StepRuleTest, ValuesThatAreNotFiniteAreSkippedAndForgotten) {
  const StepRuleOptions options{.skip_nonfinite = true, .spike_sigmas = 6};
  StepHistory history = Calm(options, 40);
  EXPECT_EQ(ReasonToSkip(options, kNan, 1, "", &history), "the loss is nan");
  EXPECT_EQ(ReasonToSkip(options, 2, kNan, "w", &history),
            "the loss is 2, the gradient of w is not finite");
  EXPECT_EQ(history.skipped, 2);
  EXPECT_EQ(history.losses.size(), 40u);
  for (const double norm : history.norms) EXPECT_TRUE(std::isfinite(norm));
}

}  // namespace
}  // namespace switchyard::train
