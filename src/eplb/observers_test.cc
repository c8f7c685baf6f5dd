// What several observers of one model want and get, and counts in place of tokens.
#include "eplb/observers.h"

#include <gtest/gtest.h>

#include "comm/device/rank_threads.h"
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
    EXPECT_FALSE(recorder.wants_tokens());
    recorder.Start();
    recorder.BeginPass(2);
    recorder.OnRoute(1, {.tokens = 2, .logical = logical, .physical = physical});
    recorder.EndPass({});
    by_tokens = recorder.Load();
  });
  WithRecorder({.mode = "stat"}, [&](ExpertRecorder& recorder) {
    const std::vector<int32_t> of_experts = {1, 2, 0, 1}, of_slots = {1, 1, 0, 1, 1};
    recorder.Start();
    recorder.BeginPass(2);
    recorder.OnCounts(1, {.logical = of_experts, .physical = of_slots});
    recorder.EndPass({});
    by_counts = recorder.Load();
  });
  EXPECT_EQ(by_counts.logical_count, (std::vector<int64_t>{0, 0, 0, 0, 1, 2, 0, 1}));
  EXPECT_EQ(by_counts.logical_count, by_tokens.logical_count);
  EXPECT_EQ(by_counts.rank_count, by_tokens.rank_count);
}

TEST(Recorder, WantsThePassesThatItCounts) {
  WithRecorder({.mode = "per_token"}, [&](ExpertRecorder& recorder) {
    EXPECT_TRUE(recorder.wants_tokens());
    for (const bool recording : {false, true}) {
      if (recording) recorder.Start();
      recorder.BeginPass(0);
      EXPECT_EQ(recorder.wants_pass(), recording);
      recorder.EndPass({});
    }
  });
  WithRecorder({.metrics = true}, [&](ExpertRecorder& recorder) {
    recorder.BeginPass(0);
    EXPECT_TRUE(recorder.wants_pass());
    recorder.EndPass({});
  });
}

// Each is called for events that one of them needs.
TEST(Observers, WantWhatOneOfThemWants) {
  struct One : RoutingObserver {
    bool tokens = false, pass = false;
    int counted = 0;
    void OnPlacement(int, const ExpertPlacement&) override {}
    void OnRoute(int, const RoutedTokens&) override {}
    bool wants_tokens() const override { return tokens; }
    void OnCounts(int, const RoutedCounts&) override { ++counted; }
    bool wants_pass() const override { return pass; }
  };
  One a, b;
  Observers both({&a, &b});
  EXPECT_FALSE(both.wants_tokens());
  EXPECT_FALSE(both.wants_pass());
  b.tokens = a.pass = true;
  EXPECT_TRUE(both.wants_tokens());
  EXPECT_TRUE(both.wants_pass());
  both.OnCounts(0, {});
  EXPECT_EQ(a.counted + b.counted, 2);
}

}  // namespace
}  // namespace switchyard
