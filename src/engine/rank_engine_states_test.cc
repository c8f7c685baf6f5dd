// Recurrent states: reuse of cached prefixes, retraction, and passes that run again.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "engine/kv_cache/state_slots.h"
#include "engine/sampler/random.h"
#include "engine/speculative/test_drafters.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

// Slots for `running` requests, and `more` for prefixes.
RankEngine::Options WithStates(RankEngine::Options options, int32_t running, int64_t more) {
  options.max_running_requests = running;
  options.num_states = 2 * int64_t{running} + more;
  return options;
}

Ids Joined(Ids first, const Ids& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

std::vector<int32_t> Alone(const EngineRequest& request) {
  return Rig(Roomy()).Run(request).new_tokens;
}

TEST(RankEngineStates, APrefixIsReusedUpToItsCheckpoint) {
  Rig rig(WithStates(Roomy(), 4, 8));
  const RequestOutput first = rig.Run(Greedy(1, Count(18), 9));
  // The end of the prompt's last page, and the last end of a page of the output: 18 + 8 tokens.
  EXPECT_EQ(rig.Run(Greedy(2, Count(18), 9)).cached_tokens, 16);
  EXPECT_EQ(rig.seen[2].new_tokens, first.new_tokens);
  const Ids longer = Joined(Joined(Count(18), first.new_tokens), {1, 2, 3});
  const EngineRequest next = Greedy(3, longer, 5);
  EXPECT_EQ(rig.Run(next).cached_tokens, 24);
  EXPECT_EQ(rig.seen[3].new_tokens, Alone(next));
}

// The pages of a common beginning are cached, but have no checkpoint at its end. The second request
// leaves one there.
TEST(RankEngineStates, TheSecondRequestOfAPrefixLeavesACheckpoint) {
  Rig rig(WithStates(Roomy(), 4, 8));
  const Ids common = Count(21);
  for (int32_t i = 0; i < 4; ++i) {
    const EngineRequest request =
        Greedy(static_cast<uint64_t>(i) + 1, Joined(common, Ids(12, 30 + i)), 3);
    EXPECT_EQ(rig.Run(request).cached_tokens, i < 2 ? 0 : 20) << i;
    EXPECT_EQ(rig.seen[request.id].new_tokens, Alone(request));
  }
}

TEST(RankEngineStates, TheLeastRecentCheckpointGivesItsSlot) {
  Rig rig(WithStates(Roomy(), 1, 2));  // a request needs two slots; two are left
  const auto run = [&](uint64_t id, int32_t first) {
    return rig.Run(Greedy(id, Count(9, first), 1)).cached_tokens;
  };
  EXPECT_EQ(run(1, 0), 0);
  EXPECT_EQ(run(2, 20), 0);
  EXPECT_EQ(run(3, 0), 8);
  for (uint64_t id = 4; id < 8; ++id) EXPECT_EQ(run(id, 5 * static_cast<int32_t>(id) + 1), 0);
  EXPECT_EQ(run(8, 0), 0);  // its checkpoint was dropped, its pages were not
  EXPECT_EQ(run(9, 0), 8);
}

// Each output crosses the end of a page and keeps a mark, while all requests run.
TEST(RankEngineStates, OutputsOfAFullBatchLeaveTheCheckpointsOfPrefixes) {
  constexpr int32_t kRunning = 16;
  Rig rig(WithStates(Roomy(), kRunning, StateSlots::TotalFor(kRunning, true) - 2 * kRunning));
  rig.Run(Greedy(1, Count(18), 1));
  for (int32_t i = 0; i < kRunning; ++i)  // prompts shorter than a page
    rig.Tell({Greedy(static_cast<uint64_t>(i) + 2, Ids(3, 20 + i), 12)});
  int64_t most = 0;
  while (rig.engine.HasWork()) {
    rig.Step();
    most = std::max(most, rig.engine.running());
  }
  EXPECT_EQ(most, kRunning);
  EXPECT_EQ(rig.Run(Greedy(100, Count(18), 1)).cached_tokens, 16);
}

TEST(RankEngineStates, RetractedRequestsContinueWithTheSameTokens) {
  RankEngine::Options options = TightOptions();
  options.num_pages = 20;
  options.conservativeness = 0.1;
  Rig rig(WithStates(options, 8, 4));
  const auto requests = MixedRequests(7);
  for (const EngineRequest& request : requests) rig.Tell({request});
  rig.RunOut();
  EXPECT_GT(rig.engine.Stats().retractions, 0);
  EXPECT_GT(rig.model.state_copies, 0);
  for (const EngineRequest& request : requests) {
    SCOPED_TRACE(request.id);
    ExpectSameOutput(rig.seen[request.id], Rig(Roomy()).Run(request));
  }
}

TEST(RankEngineStates, PassesThatRunAgainReadTheSameStates) {
  for (const bool throws : {false, true}) {
    SCOPED_TRACE(throws);
    Rig rig(WithStates(TightOptions(), 8, 4));
    rig.model.during = [&](uint64_t pass) {
      const bool aborts = UniformDraw(7, static_cast<int64_t>(pass)) < 0.4;
      EXPECT_EQ(aborts && rig.engine.AbortPass(pass), aborts);
    };
    if (throws) rig.model.during = rig.FailSometimes();
    const auto requests = MixedRequests(6);
    for (const EngineRequest& request : requests) rig.Tell({request});
    throws ? rig.RunThroughErrors() : rig.RunOut();
    for (const EngineRequest& request : requests) {
      SCOPED_TRACE(request.id);
      EXPECT_EQ(rig.seen[request.id].new_tokens, Rig(Roomy()).Run(request).new_tokens);
    }
  }
}

// A pass that is launched ahead reads the states of a pass whose tokens are not known yet.
TEST(RankEngineStates, LaunchedPassesRunAgainFromTheSameStates) {
  for (const bool throws : {false, true}) {
    SCOPED_TRACE(throws);
    Rig rig(WithStates(TightOptions(), 8, 8), 61, true);
    if (throws) rig.model.during = rig.FailSometimes();
    const auto requests = MixedRequests(7);
    for (const EngineRequest& request : requests) rig.Tell({request});
    int again = 0;
    for (int step = 0; rig.engine.HasWork(); ++step) {
      ASSERT_LT(step, 1000);
      try {
        rig.Step();
      } catch (const Error&) {
        ++again;
      }
      if (UniformDraw(3, step) < 0.5 && rig.engine.AbortPass(rig.engine.last_pass())) ++again;
    }
    EXPECT_GT(again, 3);
    EXPECT_GT(rig.model.launched, 5);
    EXPECT_TRUE(rig.engine.PoolIsWhole());
    for (const EngineRequest& request : requests) {
      SCOPED_TRACE(request.id);
      ExpectSameOutput(rig.seen[request.id], Rig(Roomy()).Run(request));
    }
  }
}

// The pass after the one with the stop token ends a page. It must not replace the checkpoint of the
// page before.
TEST(RankEngineStates, SuperfluousPassesLeaveTheLastCheckpoint) {
  Rig rig(WithStates(Roomy(), 4, 8), 61, true);
  EngineRequest request = Greedy(1, Count(18), 20);
  request.sampling.stop_token_ids = {Alone(Greedy(1, Count(18), 10)).back()};
  const RequestOutput first = rig.Run(request);
  EXPECT_EQ(first.finish, FinishReason::kStop);
  EXPECT_EQ(first.new_tokens.size(), 10u);  // 27 computed tokens, and one row more
  EXPECT_EQ(rig.model.launched, 11);
  const EngineRequest next = Greedy(2, Joined(Joined(Count(18), first.new_tokens), {1, 2, 3}), 5);
  EXPECT_EQ(rig.Run(next).cached_tokens, 24);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(next));
  EXPECT_EQ(rig.Run(Greedy(3, Count(18), 1)).cached_tokens, 16);
}

// Rows after the last whole chunk of a prompt have another form than in a longer prompt, so neither
// they nor outputs are shared.
TEST(RankEngineStates, OnlyWholeChunksOfPromptsAreReused) {
  RankEngine::Options options = WithStates(Roomy(), 4, 8);
  options.state_chunk = 8;
  const auto alone = [&](const EngineRequest& request) {
    return Rig(options).Run(request).new_tokens;
  };
  Rig rig(options);
  const EngineRequest first = Greedy(1, Count(21), 12);
  EXPECT_EQ(rig.Run(first).new_tokens, alone(first));
  EXPECT_NE(rig.seen[1].new_tokens, Alone(first));  // the fake model distinguishes the forms
  const Ids longer = Joined(Joined(Count(21), rig.seen[1].new_tokens), {1, 2, 3});
  for (const auto& [id, cached] : {std::pair<uint64_t, int>(2, 16), {3, 32}}) {
    const EngineRequest next = Greedy(id, longer, 5);
    EXPECT_EQ(rig.Run(next).cached_tokens, cached);
    EXPECT_EQ(rig.seen[id].new_tokens, alone(next));
  }
}

TEST(RankEngineStates, PassesEndBetweenChunks) {
  RankEngine::Options options = WithStates(Roomy(), 4, 8);
  options.state_chunk = 8;
  options.chunked_prefill_size = 21;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(50), 1), Greedy(2, Count(50, 7), 1)});
  int64_t passes = 0;
  while (rig.engine.HasWork()) {
    rig.Step();
    ++passes;
  }
  EXPECT_EQ(passes, 6);  // each prompt: 16, 16 and 18 rows
  EXPECT_EQ(rig.model.most_rows, 18);
}

RankEngine::Options WithDrafts(RankEngine::Options options, int32_t running, Drafter* drafter,
                               int32_t drafts) {
  options.max_running_requests = running;
  options.num_states = StateSlots::TotalFor(running, true, drafts);
  options.drafter = drafter;
  options.max_drafts = drafts;
  return options;
}

// With aborted passes and retractions, for drafts of which none, some or all are accepted.
TEST(RankEngineStates, DraftsKeepTheStateOfTheLastAcceptedRow) {
  const auto requests = MixedRequests(7);
  for (const double accuracy : {0.0, 0.6, 1.0}) {
    SCOPED_TRACE(accuracy);
    OracleDrafter oracle(accuracy, 61);
    std::map<uint64_t, RequestOutput> want;
    for (const EngineRequest& request : requests) {
      want[request.id] = Rig(Roomy()).Run(request);
      oracle.outputs[request.id] = want[request.id].new_tokens;
    }
    RankEngine::Options options = TightOptions();
    options.num_pages = 24;
    Rig rig(WithDrafts(options, 8, &oracle, 3));
    rig.model.during = [&](uint64_t pass) {
      const bool aborts = UniformDraw(9, static_cast<int64_t>(pass)) < 0.2;
      EXPECT_EQ(aborts && rig.engine.AbortPass(pass), aborts);
    };
    for (const EngineRequest& request : requests) rig.Tell({request});
    rig.RunOut();
    EXPECT_GT(rig.model.state_copies, 10);
    EXPECT_GT(rig.engine.Stats().drafted_tokens, 10);
    EXPECT_TRUE(rig.engine.PoolIsWhole());
    for (const EngineRequest& request : requests) {
      SCOPED_TRACE(request.id);
      EXPECT_EQ(rig.seen[request.id].new_tokens, want[request.id].new_tokens);
    }
  }
}

TEST(RankEngineStates, OutputsOfDraftsLeaveACheckpointAtTheirLastPage) {
  const EngineRequest request = Greedy(1, Count(18), 9);
  OracleDrafter oracle(1.0, 61);
  oracle.outputs[1] = Alone(request);
  Rig rig(WithDrafts(Roomy(), 4, &oracle, 3));
  EXPECT_EQ(rig.Run(request).new_tokens, oracle.outputs[1]);
  EXPECT_EQ(rig.model.passes, 3);  // after the prompt, the second pass goes past the end of a page
  const EngineRequest next = Greedy(2, Joined(Joined(Count(18), oracle.outputs[1]), {1, 2, 3}), 5);
  EXPECT_EQ(rig.Run(next).cached_tokens, 24);
  EXPECT_EQ(rig.seen[2].new_tokens, Alone(next));
}

TEST(RankEngineStates, AFlushDropsAllCheckpoints) {
  Rig rig(WithStates(Roomy(), 4, 4));
  rig.Run(Greedy(1, Count(18), 4));
  EXPECT_TRUE(std::get<FlushResult>(rig.Tell({FlushCache{}}).at(0)).done);
  EXPECT_EQ(rig.Run(Greedy(2, Count(18), 4)).cached_tokens, 0);
  EXPECT_TRUE(rig.engine.PoolIsWhole());
}

}  // namespace
}  // namespace switchyard
