#include "engine/speculative/draft_pace.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <map>

namespace switchyard {
namespace {

// A server whose steps take `seconds(sequences, drafts)`. Each of its drafts is accepted with a
// fixed probability.
class Simulation {
 public:
  Simulation(int32_t most, double acceptance, std::function<double(int64_t, int32_t)> seconds)
      : pace_(most),
        acceptance_(acceptance),
        seconds_(std::move(seconds)),
        accepted_(most),
        exact_(most) {}

  // The time of `steps` steps divided by that of plain steps for the same tokens.
  double RelativeTime(int64_t sequences, int steps) {
    double time = 0, tokens = 0;
    for (int step = 0; step < steps; ++step) {
      const int32_t limit = pace_.Limit(sequences);
      ++steps_of[limit];
      const double seconds = seconds_(sequences, limit);
      time += seconds;
      double reached = static_cast<double>(sequences);
      tokens += reached;
      for (int32_t i = 0; i < limit; ++i) {
        reached *= acceptance_;
        exact_[i] += reached;
        tokens += reached;
        accepted_[i] = std::llround(exact_[i]);
      }
      pace_.ObserveDrafts(sequences, limit, accepted_);
      pace_.Observe(sequences, limit == last_ ? limit : -1, seconds);
      last_ = limit;
    }
    return time / (tokens / static_cast<double>(sequences) * seconds_(sequences, 0));
  }

  DraftPace& pace() { return pace_; }

  std::map<int32_t, int> steps_of;

 private:
  DraftPace pace_;
  const double acceptance_;
  const std::function<double(int64_t, int32_t)> seconds_;
  std::vector<int64_t> accepted_;  // drafts, by position
  std::vector<double> exact_;      // accepted_ before rounding to integers
  int32_t last_ = -1;
};

TEST(DraftPaceTest, CheapRowsGetManyDrafts) {
  Simulation s(6, 0.9, [](int64_t, int32_t drafts) { return 1 + 0.05 * drafts; });
  EXPECT_LT(s.RelativeTime(10, 300), 0.4);
  EXPECT_GT(s.steps_of[6], 250);
}

TEST(DraftPaceTest, DearRowsGetNoDrafts) {
  Simulation s(6, 0.5, [](int64_t, int32_t drafts) { return 1.0 + drafts; });
  EXPECT_LT(s.RelativeTime(10, 200), 1.06);
  EXPECT_LT(s.RelativeTime(10, 1000), 1.02);
  EXPECT_GT(s.steps_of[0], 1100);
}

TEST(DraftPaceTest, TheNumberDependsOnTheBatch) {
  // A step takes the same time for up to 8 rows.
  const auto seconds = [](int64_t sequences, int32_t drafts) {
    return std::max<double>(8, static_cast<double>(sequences * (1 + drafts)));
  };
  Simulation s(4, 0.7, seconds);
  EXPECT_LT(s.RelativeTime(1, 200), 0.45);
  EXPECT_LT(s.RelativeTime(32, 1000), 1.03);
  s.steps_of.clear();
  EXPECT_LT(s.RelativeTime(1, 100), 0.4);
  EXPECT_GT(s.steps_of[4], 90);
}

TEST(DraftPaceTest, AMiddleNumberCanBeTheBest) {
  Simulation s(8, 0.6, [](int64_t, int32_t drafts) { return 1 + 0.2 * drafts; });
  s.RelativeTime(4, 2000);
  // With 0 to 3 drafts, a step takes 1, 1.2, 1.4 and 1.6 and gives 1, 1.6, 1.96 and 2.18 tokens. So
  // 1 and 2 drafts are the best numbers.
  EXPECT_GT(s.steps_of[1] + s.steps_of[2], 1900);
}

// Half of the steps with drafts take as long as a plain step, the others longer.
TEST(DraftPaceTest, LongStepsCountInFull) {
  int64_t steps = 0;
  Simulation s(2, 0.5, [&](int64_t, int32_t drafts) {
    return drafts > 0 && ++steps % 2 == 0 ? 1.0 + 0.9 * drafts : 1.0;
  });
  EXPECT_LT(s.RelativeTime(1, 3000), 1.01);
}

// A few steps take much longer, because of other processes.
TEST(DraftPaceTest, VeryLongStepsHaveLittleWeight) {
  int64_t steps = 0;
  Simulation s(4, 0.9, [&](int64_t, int32_t drafts) {
    return (1 + 0.1 * drafts) * (++steps % 20 == 0 ? 50 : 1);
  });
  s.RelativeTime(1, 1000);
  EXPECT_GT(s.steps_of[3] + s.steps_of[4], 900);
}

TEST(DraftPaceTest, ASmallGainIsNotWorthDrafts) {
  Simulation s(1, 0.5, [](int64_t, int32_t drafts) { return 1 + 0.49 * drafts; });
  s.RelativeTime(8, 2000);
  EXPECT_GT(s.steps_of[0], 1900);
}

TEST(DraftPaceTest, ACostThatGrowsLaterIsNoticed) {
  double row = 0.02;
  Simulation s(4, 0.6, [&](int64_t, int32_t drafts) { return 1 + row * drafts; });
  s.RelativeTime(4, 500);
  row = 2;
  s.steps_of.clear();
  s.RelativeTime(4, 500);
  EXPECT_GT(s.steps_of[0], 400);
}

TEST(DraftPaceTest, ACostThatFallsLaterIsNoticed) {
  double row = 1;
  Simulation s(4, 0.6, [&](int64_t, int32_t drafts) { return 1 + row * drafts; });
  s.RelativeTime(4, 500);
  row = 0.02;
  s.steps_of.clear();
  s.RelativeTime(4, 8000);
  EXPECT_GT(s.steps_of[4], 4000);
}

TEST(DraftPaceTest, TrialsOfNumbersThatDoNotPayTakeASmallShareOfTheTime) {
  // Turning drafts on takes long: the draft model computes the rows that it has missed.
  int32_t last = 0;
  Simulation s(4, 0.5, [&](int64_t, int32_t drafts) {
    return 1.0 + drafts + (last == 0 && drafts > 0 ? 20 : 0);
  });
  for (int i = 0; i < 200; ++i) {
    const int32_t limit = s.pace().Limit(16);
    s.RelativeTime(16, 1);
    last = limit;
  }
  double time = 0;
  for (int i = 0; i < 5000; ++i) {
    const int32_t limit = s.pace().Limit(16);
    time += s.RelativeTime(16, 1) - 1;
    last = limit;
  }
  EXPECT_LT(time / 5000, 0.03);
}

TEST(DraftPaceTest, AnIdleTimeKeepsTheLimit) {
  Simulation s(4, 0.5, [](int64_t, int32_t drafts) { return 1.0 + drafts; });
  EXPECT_EQ(s.pace().Limit(0), 2);
  s.RelativeTime(10, 200);
  EXPECT_EQ(s.pace().Limit(10), 0);
  EXPECT_EQ(s.pace().Limit(0), 0);
}

TEST(DraftPaceTest, ANewSizeBeginsWithTheNumberOfTheNearestOne) {
  Simulation s(
      4, 0.5, [](int64_t sequences, int32_t drafts) { return sequences < 4 ? 1.0 : 1.0 + drafts; });
  s.RelativeTime(16, 50);
  EXPECT_EQ(s.pace().Limit(16), 0);
  EXPECT_EQ(s.pace().Limit(24), 0);
  s.RelativeTime(2, 1000);
  EXPECT_EQ(s.pace().Limit(1), s.pace().Limit(2));
  EXPECT_GT(s.pace().Limit(1), 0);
}

// Long times without drafts do not lower the acceptance.
TEST(DraftPaceTest, StepsWithoutDraftsDoNotCountAsRejections) {
  const auto seconds = [](int64_t sequences, int32_t drafts) {
    return sequences == 1 ? 1 + 0.1 * drafts : 1.0 + drafts;
  };
  Simulation s(4, 0.8, seconds);
  s.RelativeTime(1, 300);
  s.RelativeTime(32, 2000);
  s.steps_of.clear();
  s.RelativeTime(1, 100);
  EXPECT_GT(s.steps_of[4], 90);
}

TEST(DraftPaceTest, UnverifiedPositionsAreEstimatedByEarlierOnes) {
  DraftPace pace(4);
  const std::vector<int64_t> accepted = {900};
  pace.ObserveDrafts(1000, 1, accepted);
  EXPECT_NEAR(pace.TokensOf(0), 1, 1e-9);
  EXPECT_NEAR(pace.TokensOf(1), 1.9, 0.01);
  EXPECT_NEAR(pace.TokensOf(2), 1.9 + 0.81, 0.02);
}

}  // namespace
}  // namespace switchyard
