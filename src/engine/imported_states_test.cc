// Prompts with recurrent states that one engine computes and another one continues.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "engine/test_engine_pair.h"

namespace switchyard {
namespace {

// With few slots, requests wait for them although there are pages.
TEST(ImportedStatesTest, StatesContinueAfterThePrompt) {
  std::mt19937 random(7);
  for (const auto& [from, to] : {std::pair(4, 4), {3, 8}, {8, 1}}) {
    for (const int32_t running : {1, 3, 16}) {
      SCOPED_TRACE(fmt::format("pages of {} and {}, {} running", from, to, running));
      RankEngine::Options prefill = WithSlots(SizedOptions(from, 400 / from), running);
      RankEngine::Options decode =
          WithSlots(SizedOptions(to, 400 / to), running, running == 3 ? 0 : 8);
      decode.enable_radix_cache = running != 16;
      EnginePair pair(prefill, decode);
      std::vector<EngineRequest> requests;
      for (uint64_t id = 1; id <= 30; ++id) {
        requests.push_back(RandomSharedRequest(id, random));
        pair.Submit(requests.back());
        if (random() % 3 == 0) pair.Step();
        if (random() % 6 == 0) pair.Pause(id % 2 ? PauseAction::kNone : PauseAction::kRetract);
      }
      pair.RunOut();
      ExpectOutputsOfOne(pair, requests);
    }
  }
}

TEST(ImportedStatesTest, PrefixesWithStatesAreReusedOnBothEngines) {
  EnginePair pair(WithSlots(SizedOptions(4, 64), 4), WithSlots(SizedOptions(8, 32), 4));
  std::vector<EngineRequest> requests = {Greedy(1, Count(16), 9), Greedy(2, Count(16), 9)};
  pair.Submit(requests[0]);
  pair.RunOut();
  EXPECT_GE(pair.imported[1].state, 0);
  pair.Submit(requests[1]);
  pair.RunOut();
  EXPECT_EQ(pair.imported[2].begin, 16);  // the state at the end of the prompt is cached
  EXPECT_EQ(pair.imported[2].state, -1);
  // 16 tokens of the prompt and 8 of the output, whose last one has no state.
  Ids longer = Count(16);
  for (const int32_t id : pair.seen[1].new_tokens) longer.push_back(id);
  longer.push_back(1);
  requests.push_back(Greedy(3, longer, 9));
  pair.Submit(requests[2]);
  pair.RunOut();
  EXPECT_EQ(pair.imported[3].begin, 24);
  EXPECT_GE(pair.imported[3].state, 0);
  EXPECT_EQ(pair.seen[3].cached_tokens, 16);  // on the prefill engine
  ExpectOutputsOfOne(pair, requests);
}

// Held prompts keep slots, so further prompts wait, and those that no engine has asked for are
// computed again.
TEST(ImportedStatesTest, FullSlotsDelayRequestsInAnyOrder) {
  std::mt19937 random(8);
  int64_t parked = 0;
  for (int round = 0; round < 20; ++round) {
    EnginePair pair(WithSlots(SizedOptions(4, 100), 1, 0), WithSlots(SizedOptions(4, 100), 1, 2));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 12; ++id) requests.push_back(RandomSharedRequest(id, random));
    std::vector<EngineRequest> other = requests;
    std::ranges::shuffle(other, random);
    for (size_t i = 0; i < requests.size(); ++i) {
      pair.SubmitPrefill(requests[i]);
      if (random() % 2) pair.Step();
      pair.SubmitDecode(other[i]);
    }
    pair.RunOut();
    ExpectOutputsOfOne(pair, requests);
    parked += pair.prefill.engine.Stats().retractions;
  }
  EXPECT_GT(parked, 0);
}

}  // namespace
}  // namespace switchyard
