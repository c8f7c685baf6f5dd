#include "engine/scheduler/prefill_pace.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

// A simulated machine: a step takes `base` seconds plus `row` seconds per prompt row.
struct Machine {
  double base, row;
  void Run(PrefillPace& pace, int steps) const {
    for (int i = 0; i < steps; ++i) {
      pace.Observe(0, 8, base);
      pace.Observe(pace.rows(), 8, base + row * static_cast<double>(pace.rows()));
    }
  }
};

TEST(PrefillPace, StartsAtTheChunkSize) {
  EXPECT_EQ(PrefillPace(0, 2048).rows(), 2048);
  PrefillPace pace(0, 2048);
  pace.Observe(0, 8, 0.002);
  EXPECT_EQ(pace.rows(), 2048);
}

TEST(PrefillPace, FindsTheRowsThatFitTheTarget) {
  PrefillPace pace(0.030, 2048);
  Machine{0.002, 60e-6}.Run(pace, 20);
  EXPECT_NEAR(static_cast<double>(pace.rows()), 0.028 / 60e-6, 0.13 * 0.028 / 60e-6);
}

TEST(PrefillPace, DerivesTheTargetFromTheDecodeStep) {
  PrefillPace fast(0, 2048), middle(0, 2048), slow(0, 2048);
  Machine{0.001, 60e-6}.Run(fast, 20);
  Machine{0.010, 60e-6}.Run(middle, 20);
  Machine{0.100, 60e-6}.Run(slow, 20);
  EXPECT_DOUBLE_EQ(fast.target_seconds(), 0.025);
  EXPECT_DOUBLE_EQ(middle.target_seconds(), 0.050);
  EXPECT_DOUBLE_EQ(slow.target_seconds(), 0.200);
  EXPECT_GT(slow.rows(), 3 * fast.rows());
}

TEST(PrefillPace, StaysWithinItsBounds) {
  PrefillPace cheap(0, 512), dear(0, 512), tiny(0, 8);
  Machine{0.001, 1e-6}.Run(cheap, 20);
  Machine{0.001, 1.0}.Run(dear, 20);
  Machine{0.001, 1.0}.Run(tiny, 20);
  EXPECT_EQ(cheap.rows(), 512);
  EXPECT_EQ(dear.rows(), PrefillPace::kMinRows);
  EXPECT_EQ(tiny.rows(), 8);
}

TEST(PrefillPace, OneSlowStepDoesNotStarvePrompts) {
  PrefillPace pace(0.030, 2048);
  const Machine machine{0.002, 60e-6};
  machine.Run(pace, 20);
  const int64_t before = pace.rows();
  pace.Observe(before, 8, 5.0);
  EXPECT_GT(pace.rows(), before / 2);
  machine.Run(pace, 20);
  EXPECT_NEAR(static_cast<double>(pace.rows()), static_cast<double>(before), 0.2 * before);
}

TEST(PrefillPace, TailsOfPromptsDoNotCount) {
  PrefillPace pace(0.030, 2048);
  Machine{0.002, 60e-6}.Run(pace, 20);
  const int64_t before = pace.rows();
  for (int i = 0; i < 50; ++i) pace.Observe(1, 8, 0.010);
  EXPECT_EQ(pace.rows(), before);
}

}  // namespace
}  // namespace switchyard
