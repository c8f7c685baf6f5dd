// Tests of several observers of one model: which data they require and receive. Also tests
// observers that receive counts instead of tokens.
#include <gtest/gtest.h>

#include "comm/device/rank_threads.h"
#include "eplb/batch_replicas.h"
#include "eplb/recorder.h"

namespace switchyard {
namespace {

constexpr int kLayers = 2, kExperts = 4;

// Runs `body` with a recorder of one rank.
void WithRecorder(const ExpertRecorderOptions& options,
                  const std::function<void(ExpertRecorder&)>& body) {
  const MeshShape mesh{.tp = 1};
  RunRankThreads(
      1, RankComm::BytesPerRank(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), mesh, rank);
        ExpertRecorder recorder(
            options, {.layers = kLayers, .experts = kExperts, .top_k = 2, .redundant = 1}, *comm);
        for (int layer = 0; layer < kLayers; ++layer)
          recorder.OnPlacement(layer, ExpertPlacement(kExperts, {0, 1, 2, 3, 1}));
        body(recorder);
      });
}

TEST(Recorder, TakesCountsAsItTakesTokens) {
  const std::vector<int32_t> logical = {0, 1, 1, 3}, physical = {0, 4, 1, 3};
  ExpertLoad by_tokens, by_counts;
  WithRecorder({.mode = "stat"}, [&](ExpertRecorder& recorder) {
    EXPECT_FALSE(recorder.needs_tokens());
    recorder.Start();
    recorder.BeginPass(0, 2);
    recorder.OnRoute(0, 1, {.tokens = 2, .logical = logical, .physical = physical});
    recorder.EndPass(0, {});
    by_tokens = recorder.Load();
  });
  WithRecorder({.mode = "stat"}, [&](ExpertRecorder& recorder) {
    const std::vector<int32_t> of_experts = {1, 2, 0, 1}, of_slots = {1, 1, 0, 1, 1};
    recorder.Start();
    recorder.BeginPass(0, 2);
    recorder.OnCounts(0, 1, {.logical = of_experts, .physical = of_slots});
    recorder.EndPass(0, {});
    by_counts = recorder.Load();
  });
  EXPECT_EQ(by_counts.logical_count, (std::vector<int64_t>{0, 0, 0, 0, 1, 2, 0, 1}));
  EXPECT_EQ(by_counts.logical_count, by_tokens.logical_count);
  EXPECT_EQ(by_counts.rank_count, by_tokens.rank_count);
}

TEST(Recorder, AddsTheTimesOfCountedPasses) {
  WithRecorder({.metrics = true}, [&](ExpertRecorder& recorder) {
    recorder.OnTimes(0, {.dispatch = 9});  // not a pass
    recorder.BeginPass(1, 2);
    recorder.BeginPass(2, 2);
    recorder.OnTimes(1, {.dispatch = 1, .experts = 10, .combine = 100});
    recorder.OnTimes(2, {.dispatch = 5, .experts = 5, .combine = 5});
    recorder.OnTimes(1, {.dispatch = 2, .experts = 20, .combine = 200});
    EXPECT_TRUE(recorder.Load().stage_times.empty());
    recorder.EndPass(1, {});
    recorder.AbortPass(2);
    recorder.BeginPass(3, 2);
    recorder.EndPass(3, {});  // without times
    EXPECT_EQ(recorder.Load().stage_times, (std::vector<int64_t>{3, 30, 300}));
    EXPECT_EQ(recorder.Load().timed_passes, 1);
  });
}

// The second pass begins before the first one ends, after expert 0 and expert 1 have changed
// places.
TEST(Recorder, PassesInFlightAreCountedApart) {
  const std::vector<int32_t> first = {0, 0, 4, 3}, second = {0, 1, 1, 3};
  WithRecorder({.mode = "stat"}, [&](ExpertRecorder& recorder) {
    recorder.Start();
    recorder.BeginPass(7, 2);
    recorder.OnRoute(7, 1, {.tokens = 1, .physical = std::span(first).first(2)});
    for (int layer = 0; layer < kLayers; ++layer)
      recorder.OnPlacement(layer, ExpertPlacement(kExperts, {1, 0, 2, 3, 1}));
    recorder.BeginPass(8, 2);
    recorder.BeginPass(9, 2);
    recorder.OnRoute(8, 1, {.tokens = 2, .physical = second});
    recorder.OnRoute(9, 1, {.tokens = 2, .physical = second});
    recorder.OnRoute(7, 1, {.tokens = 1, .physical = std::span(first).last(2)});
    recorder.OnRoute(5, 1, {.tokens = 1, .physical = first});  // no BeginPass for pass 5
    recorder.EndPass(7, {});
    recorder.AbortPass(9);
    EXPECT_EQ(recorder.Load().logical_count, (std::vector<int64_t>{0, 0, 0, 0, 2, 1, 0, 1}));
    recorder.EndPass(8, {});
    EXPECT_EQ(recorder.Load().logical_count, (std::vector<int64_t>{0, 0, 0, 0, 4, 2, 0, 2}));
    EXPECT_EQ(recorder.Load().passes, 2);
    EXPECT_FALSE(recorder.needs_pass(9));
    recorder.BeginPass(9, 2);  // the pass runs again
    recorder.OnRoute(9, 1, {.tokens = 1, .physical = std::span(second).first(1)});
    recorder.EndPass(9, {});
    EXPECT_EQ(recorder.Load().logical_count, (std::vector<int64_t>{0, 0, 0, 0, 4, 3, 0, 2}));
  });
}

TEST(Recorder, NeedsThePassesThatItCounts) {
  WithRecorder({.mode = "per_token"}, [&](ExpertRecorder& recorder) {
    EXPECT_TRUE(recorder.needs_tokens());
    for (const bool recording : {false, true}) {
      if (recording) recorder.Start();
      recorder.BeginPass(0, 0);
      EXPECT_EQ(recorder.needs_pass(0), recording);
      recorder.EndPass(0, {});
    }
  });
  WithRecorder({.metrics = true}, [&](ExpertRecorder& recorder) {
    recorder.BeginPass(0, 0);
    EXPECT_TRUE(recorder.needs_pass(0));
    recorder.EndPass(0, {});
  });
}

// Every observer is called for each event that at least one of the observers needs.
TEST(Observers, NeedWhatAnyOfThemNeeds) {
  struct One : RoutingObserver {
    bool tokens = false, pass = false;
    int counted = 0;
    void OnPlacement(int, const ExpertPlacement&) override {}
    void OnRoute(uint64_t, int, const RoutedTokens&) override {}
    bool needs_tokens() const override { return tokens; }
    void OnCounts(uint64_t, int, const RoutedCounts&) override { ++counted; }
    bool needs_pass(uint64_t) const override { return pass; }
  };
  One a, b;
  Observers both({&a, &b});
  EXPECT_FALSE(both.needs_tokens());
  EXPECT_FALSE(both.needs_pass(0));
  b.tokens = a.pass = true;
  EXPECT_TRUE(both.needs_tokens());
  EXPECT_TRUE(both.needs_pass(0));
  both.OnCounts(0, 0, {});
  EXPECT_EQ(a.counted + b.counted, 2);
}

}  // namespace
}  // namespace switchyard
