// Sums of counts over passes and ranks, and the statistics derived from them.
#include "eplb/load_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>

namespace switchyard {
namespace {

constexpr int kLayers = 2, kExperts = 8, kRanks = 2;

void OnRanks(const std::function<void(RankComm&)>& body) {
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  RunRankThreads(kRanks, RankComm::BytesPerRank(mesh),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   body(*RankComm::Create(std::move(arena), mesh, rank));
                 });
}

LoadWindow Window(RankComm& comm, int64_t passes) {
  return {kLayers, kExperts, kRanks, ExpertMap(kExperts, kRanks, false), passes, *comm.tp};
}

// Runs a pass in which every layer gets the choices `ids`; slots equal expert ids.
bool Pass(LoadWindow& window, const std::vector<int32_t>& ids) {
  for (int layer = 0; layer < kLayers; ++layer) window.Add(0, layer, ids, ids);
  return window.EndPass(0);
}

TEST(LoadWindow, SumsOverRanksAndThePassesOfAStep) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, 150);  // three passes per step
    const int rank = comm.mesh.rank();
    EXPECT_FALSE(Pass(window, {0, -1, 5}));
    EXPECT_FALSE(Pass(window, {rank}));
    EXPECT_EQ(window.History().steps, 0);
    EXPECT_EQ(window.MeanBalancedness(), std::nullopt);
    EXPECT_TRUE(Pass(window, {}));
    const LoadHistory history = window.History();
    ASSERT_EQ(history.steps, 1);
    for (int layer = 0; layer < kLayers; ++layer)
      EXPECT_TRUE(
          std::ranges::equal(history.At(0, layer), std::vector<int32_t>{3, 1, 0, 0, 0, 2, 0, 0}));
    EXPECT_DOUBLE_EQ(window.MeanBalancedness().value(), 3.0 / 4);  // 4 and 2 rows
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(Pass(window, {}));    // empty steps are dropped
    EXPECT_EQ(window.History().steps, 1);
  });
}

TEST(LoadWindow, TakesCountsAsItTakesTokens) {
  OnRanks([](RankComm& comm) {
    LoadWindow tokens = Window(comm, LoadWindow::kSteps), counts = tokens;
    const std::vector<int32_t> logical = {0, 0, 5, -1, 7}, physical = {1, 6, 5, -1, 0};
    for (int layer = 0; layer < kLayers; ++layer) {
      tokens.Add(0, layer, logical, physical);
      counts.AddCounts(0, layer, std::vector<int32_t>{2, 0, 0, 0, 0, 1, 0, 1},
                       std::vector<int32_t>{1, 1, 0, 0, 0, 1, 1, 0});
    }
    EXPECT_TRUE(tokens.EndPass(0));
    EXPECT_TRUE(counts.EndPass(0));
    EXPECT_EQ(counts.MeanBalancedness(), tokens.MeanBalancedness());
    EXPECT_EQ(counts.History().counts, tokens.History().counts);
  });
}

TEST(LoadWindow, PassesInFlightCountWhenTheyEnd) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, 100);  // two passes per step
    LoadWindow in_turn = window;
    const auto add = [](LoadWindow& to, uint64_t pass, int layer, int32_t expert) {
      to.Add(pass, layer, std::vector{expert}, std::vector{expert});
    };
    // Pass 3 routes its first layer before pass 2 ends the step, and pass 9 is aborted.
    for (int layer = 0; layer < kLayers; ++layer) {
      add(window, 1, layer, 1);
      add(window, 2, layer, 2);
      if (layer == 0) add(window, 3, layer, 3);
      add(window, 9, layer, 5);
    }
    EXPECT_FALSE(window.EndPass(1));
    EXPECT_TRUE(window.EndPass(2));
    window.AbortPass(9);
    for (int layer = 1; layer < kLayers; ++layer) add(window, 3, layer, 3);
    EXPECT_FALSE(window.EndPass(3));
    EXPECT_TRUE(window.EndPass(4));  // without tokens
    for (uint64_t pass = 1; pass <= 4; ++pass) {
      for (int layer = 0; layer < kLayers; ++layer)
        if (pass < 4) add(in_turn, pass, layer, static_cast<int32_t>(pass));
      in_turn.EndPass(pass);
    }
    EXPECT_EQ(window.History().counts, in_turn.History().counts);
    EXPECT_EQ(window.History().steps, 2);
  });
}

// A GPU computes the rows of pass 2 itself, so they do not count, and neither does the pass.
TEST(LoadWindow, SkippedPassesDoNotCount) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, 4 * LoadWindow::kSteps);  // four passes per step
    const bool sends = comm.mesh.rank() == 0;                  // the other rank has experts only
    const auto pass = [&](uint64_t number, int32_t expert, bool skipped) {
      for (int layer = 0; sends && layer < kLayers; ++layer) {
        if (skipped) {
          window.SkipPass(number);
        } else {
          window.Add(number, layer, std::vector{expert}, std::vector{expert});
        }
      }
      return window.EndPass(number);
    };
    EXPECT_FALSE(pass(1, 0, false));
    EXPECT_FALSE(pass(2, 5, true));
    EXPECT_FALSE(pass(3, 0, false));
    EXPECT_TRUE(pass(4, 1, false));
    ASSERT_EQ(window.History().steps, 1);
    EXPECT_EQ(window.History().passes, 3);
    EXPECT_EQ(window.History().AllPasses(), 3);
    EXPECT_TRUE(std::ranges::equal(window.History().At(0, 0),
                                   std::vector<int32_t>{2, 1, 0, 0, 0, 0, 0, 0}));
    for (uint64_t number = 5; number < 8; ++number) EXPECT_FALSE(pass(number, 0, true));
    EXPECT_TRUE(pass(8, 0, false));
    EXPECT_EQ(window.History().passes, 2);  // the mean of 3 and 1
    EXPECT_EQ(window.History(1).passes, 1);
    for (uint64_t number = 9; number < 13; ++number) EXPECT_FALSE(pass(number, 0, true));
    EXPECT_EQ(window.History().steps, 2);  // a step of skipped passes is dropped
  });
}

TEST(LoadWindow, CountsMoreThanFloatsCanOneByOne) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, LoadWindow::kSteps);
    const std::vector<int32_t> ids(1 << 20, 3);
    for (int i = 0; i < 17; ++i) window.Add(0, 0, ids, ids);  // over 2^24
    EXPECT_TRUE(window.EndPass(0));
    EXPECT_EQ(window.History().At(0, 0)[3], kRanks * 17 << 20);
  });
}

TEST(LoadWindow, StepsOfAbsurdlyManyPassesAreNeverWhole) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, std::numeric_limits<int64_t>::max());
    EXPECT_FALSE(Pass(window, {1}));
    EXPECT_FALSE(Pass(window, {1}));
  });
}

TEST(LoadWindow, DropsTheOldestStep) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, LoadWindow::kSteps);
    for (int i = 0; i < LoadWindow::kSteps + 3; ++i) Pass(window, {i < 3 ? 7 : 1});
    EXPECT_EQ(window.History().steps, LoadWindow::kSteps);
    EXPECT_EQ(window.History().At(0, 0)[7], 0);
    EXPECT_EQ(window.History(5).steps, 5);
  });
}

TEST(LoadWindow, BalancednessIsThatSinceExpertsMoved) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, 2 * LoadWindow::kSteps);
    for (int i = 0; i < 6; ++i) Pass(window, {0});
    EXPECT_DOUBLE_EQ(window.MeanBalancedness().value(), 0.5);
    Pass(window, {0});
    window.OnMoved();  // in the middle of a step, which then does not count
    Pass(window, {0, 4});
    EXPECT_EQ(window.MeanBalancedness(), std::nullopt);
    for (int i = 0; i < 2; ++i) Pass(window, {0, 0, 0, 4});
    EXPECT_DOUBLE_EQ(window.MeanBalancedness().value(), 4.0 / 6);
  });
}

TEST(LoadWindow, DistinguishesAnotherShapeFromNoise) {
  OnRanks([](RankComm& comm) {
    LoadWindow window = Window(comm, LoadWindow::kSteps);
    std::mt19937 random(static_cast<uint32_t>(comm.mesh.rank()));
    const auto passes = [&](int count, int32_t first) {
      for (int i = 0; i < count; ++i) {
        std::vector<int32_t> ids(6);
        for (int32_t& id : ids) id = first + static_cast<int32_t>(random() % 4);
        Pass(window, ids);
      }
    };
    passes(LoadWindow::kSteps, 0);
    EXPECT_EQ(window.ShapeChange(), 0);  // no reference yet
    window.OnPlanned();
    passes(LoadWindow::kRecent - 1, 0);
    EXPECT_EQ(window.ShapeChange(), 0);  // too few steps
    passes(30, 0);
    EXPECT_LT(window.ShapeChange(), 0.1);
    passes(LoadWindow::kRecent / 2, 2);
    // Half of the rows are new, and half of these are for other experts.
    EXPECT_NEAR(window.ShapeChange(), 0.25, 0.1);
    passes(LoadWindow::kRecent, 4);
    EXPECT_GT(window.ShapeChange(), 0.85);
    window.OnPlanned(LoadWindow::kRecent);
    passes(LoadWindow::kRecent, 4);
    EXPECT_LT(window.ShapeChange(), 0.1);
  });
}

}  // namespace
}  // namespace switchyard
