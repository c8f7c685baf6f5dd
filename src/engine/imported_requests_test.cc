// A prompt that one engine computes and another one continues, with equal outputs.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "engine/speculative/drafter.h"
#include "engine/test_engine_pair.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

// Submits requests with common prefixes between steps, and compares all outputs.
void ExpectSharedRequestsAsOfOne(EnginePair& pair, std::mt19937& random) {
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= 40; ++id) {
    requests.push_back(RandomSharedRequest(id, random));
    pair.Submit(requests.back());
    if (random() % 3 == 0) pair.Step();
  }
  pair.RunOut();
  ExpectOutputsOfOne(pair, requests);
}

TEST(ImportedRequestsTest, OutputsEqualThoseOfOneEngine) {
  std::mt19937 random(1);
  for (const auto& [from, to] : {std::pair(4, 4), {3, 8}, {8, 1}, {1, 5}}) {
    SCOPED_TRACE(fmt::format("pages of {} and {}", from, to));
    EnginePair pair(SizedOptions(from, 400 / from), SizedOptions(to, 400 / to));
    ExpectSharedRequestsAsOfOne(pair, random);
  }
}

// On GPUs, the decode engine runs passes ahead. The prefill engine announces rows as computed when
// their pass has ended, so it launches none.
TEST(ImportedRequestsTest, OutputsEqualThoseOfOneEngineWithLaunchedPasses) {
  std::mt19937 random(11);
  for (const bool states : {false, true}) {
    RankEngine::Options prefill = SizedOptions(4, 60), decode = SizedOptions(8, 30);
    if (states) prefill = WithSlots(prefill, 8);
    if (states) decode = WithSlots(decode, 8);
    EnginePair pair(prefill, decode, /*launches=*/true);
    ExpectSharedRequestsAsOfOne(pair, random);
    EXPECT_EQ(pair.prefill.model.launched, 0);
    EXPECT_GT(pair.decode.model.launched, 0);
  }
}

TEST(ImportedRequestsTest, PausesChangeNoOutput) {
  std::mt19937 random(5);
  for (const PauseAction action : {PauseAction::kNone, PauseAction::kRetract}) {
    EnginePair pair(SizedOptions(4, 40), SizedOptions(8, 20));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 40; ++id) {
      requests.push_back(RandomSharedRequest(id, random));
      pair.Submit(requests.back());
      pair.Step();
      if (random() % 2 == 0) pair.Pause(action);
    }
    pair.RunOut();
    ExpectOutputsOfOne(pair, requests);
  }
}

TEST(ImportedRequestsTest, FullCachesDelayRequestsOnly) {
  std::mt19937 random(2);
  for (const bool states : {false, true}) {
    // A prompt and its output have at most 36 tokens.
    RankEngine::Options prefill = SizedOptions(4, 11), decode = SizedOptions(4, 14);
    if (states) prefill = WithSlots(prefill, 8);
    if (states) decode = WithSlots(decode, 8);
    EnginePair pair(prefill, decode);
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 60; ++id) {
      requests.push_back(RandomSharedRequest(id, random));
      pair.Submit(requests.back());
    }
    pair.RunOut();
    ExpectOutputsOfOne(pair, requests);
  }
}

// Each engine has pages for one prompt. The prefill engine computes the second request first, and
// the decode engine has pages for the first one.
TEST(ImportedRequestsTest, TwoFullCachesDoNotWaitForEachOther) {
  EnginePair pair(SizedOptions(4, 8, 512), SizedOptions(4, 9));
  const std::vector<EngineRequest> requests = {Greedy(1, Count(24), 9),
                                               Greedy(2, Count(24, 30), 9)};
  pair.SubmitPrefill(requests[1]);
  for (int step = 0; step < 3; ++step) pair.Step();
  pair.SubmitPrefill(requests[0]);
  for (int step = 0; step < 3; ++step) pair.Step();
  EXPECT_FALSE(pair.prefill.engine.HasWork());  // no engine has asked for either prompt
  EXPECT_EQ(pair.prefill.engine.Stats().retractions, 0);
  pair.SubmitDecode(requests[0]);
  pair.SubmitDecode(requests[1]);
  pair.RunOut();
  ExpectOutputsOfOne(pair, requests);
  EXPECT_EQ(pair.prefill.engine.Stats().retractions, 1);
  EXPECT_EQ(pair.prefill.engine.Stats().waiting, 0);
}

// Requests arrive at both engines in different orders.
TEST(ImportedRequestsTest, FullCachesDelayRequestsInAnyOrder) {
  std::mt19937 random(6);
  int64_t parked = 0;
  for (int round = 0; round < 20; ++round) {
    EnginePair pair(SizedOptions(4, 11), SizedOptions(4, 14));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 20; ++id) requests.push_back(RandomSharedRequest(id, random));
    std::vector<EngineRequest> other = requests;
    // All at once in the opposite order, or one by one in any order.
    const bool at_once = round % 2 == 0;
    if (at_once) {
      std::ranges::reverse(other);
    } else {
      std::ranges::shuffle(other, random);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      pair.SubmitPrefill(requests[i]);
      if (!at_once && random() % 2) pair.Step();
      pair.SubmitDecode(other[i]);
      if (!at_once && random() % 2) pair.Step();
    }
    pair.RunOut();
    ExpectOutputsOfOne(pair, requests);
    parked += pair.prefill.engine.Stats().retractions;
  }
  EXPECT_GT(parked, 0);
}

TEST(ImportedRequestsTest, CachedPrefixesAreNotTransferred) {
  EnginePair pair(SizedOptions(4, 64), SizedOptions(8, 32));
  pair.Submit(Greedy(1, Count(20)));
  pair.RunOut();
  EXPECT_EQ(pair.imported[1].begin, 0);
  EXPECT_EQ(pair.imported[1].end, 20);
  pair.Submit(Greedy(2, Count(22)));
  pair.Submit(Greedy(3, Count(16)));
  pair.RunOut();
  EXPECT_EQ(pair.imported[2].begin, 16);  // two pages of 8
  EXPECT_EQ(pair.imported[3].begin, 16);  // the whole prompt
  ExpectOutputsOfOne(pair, {Greedy(1, Count(20)), Greedy(2, Count(22)), Greedy(3, Count(16))});
  EXPECT_EQ(pair.seen[2].cached_tokens, 20);  // on the engine that computed the prompt
}

TEST(ImportedRequestsTest, ARequestThatEndsWithItsFirstTokenNeedsNoPages) {
  EnginePair pair(SizedOptions(4, 64), SizedOptions(4, 64));
  EngineRequest request = Greedy(1, Count(9), 1);
  pair.Submit(request);
  pair.RunOut();
  ExpectOutputsOfOne(pair, {request});
  EXPECT_EQ(pair.seen[1].finish, FinishReason::kLength);
}

TEST(ImportedRequestsTest, HeldPagesStayUntilTheirRelease) {
  EnginePair pair(SizedOptions(4, 6, 512), SizedOptions(4, 64));
  pair.transfers = false;
  pair.Submit(Greedy(1, Count(16)));
  pair.Submit(Greedy(2, Count(16, 7)));  // needs 4 of the 2 pages that are left
  for (int step = 0; step < 10; ++step) pair.Step();
  // Nothing can run before a message: the loop of a rank waits for one.
  EXPECT_FALSE(pair.prefill.engine.HasWork());
  EXPECT_FALSE(pair.decode.engine.HasWork());
  EXPECT_TRUE(pair.exported.contains(1));
  EXPECT_FALSE(pair.exported.contains(2));
  pair.prefill.Tell({ReleaseKv{.id = 1, .error = "the other engine has ended"}});
  EXPECT_TRUE(pair.prefill.engine.HasWork());
  for (int step = 0; step < 10; ++step) pair.Step();
  EXPECT_EQ(pair.exported[1].finish, FinishReason::kError);
  EXPECT_THAT(pair.exported[1].error, HasSubstr("the other engine has ended"));
  EXPECT_EQ(pair.exported[2].kv->end, 16);
  pair.prefill.Tell({AbortRequest{2}});
  pair.decode.Tell({AbortRequest{1}, AbortRequest{2}});
  for (int step = 0; step < 3; ++step) pair.Step();
  EXPECT_EQ(pair.exported[2].finish, FinishReason::kAbort);
  EXPECT_TRUE(pair.prefill.engine.PoolIsWhole());
  EXPECT_TRUE(pair.decode.engine.PoolIsWhole());
}

TEST(ImportedRequestsTest, AbortsAtAnyTimeLeaveNoPages) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    RankEngine::Options options = SizedOptions(4, 20);
    if (round % 2) options = WithSlots(options, 3);
    EnginePair pair(options, options);
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 6; ++id) {
      requests.push_back(RandomSharedRequest(id, random));
      pair.Submit(requests.back());
    }
    const uint64_t victim = 1 + random() % 6;
    for (auto steps = random() % 12; steps > 0; --steps) pair.Step();
    pair.prefill.Tell({AbortRequest{victim}});
    pair.decode.Tell({AbortRequest{victim}});
    // EnginePair does not start an aborted request later, as a transfer between servers would not.
    pair.RunOut();
    std::erase_if(requests, [&](const EngineRequest& r) { return r.id == victim; });
    ExpectOutputsOfOne(pair, requests);
  }
}

TEST(ImportedRequestsTest, ErrorsOfTheOtherEngineEndTheRequest) {
  EnginePair pair(SizedOptions(4, 64), SizedOptions(4, 64));
  pair.transfers = false;
  pair.Submit(Greedy(1, Count(9)));
  for (int step = 0; step < 5; ++step) pair.Step();
  RequestOutput failed{.finish = FinishReason::kError, .error = "the prefill worker has ended"};
  pair.decode.Tell({StartImported{.id = 1, .first = failed}});
  pair.Step();
  EXPECT_EQ(pair.seen[1].finish, FinishReason::kError);
  EXPECT_EQ(pair.seen[1].error, "the prefill worker has ended");
  EXPECT_TRUE(pair.decode.engine.PoolIsWhole());
  // A second StartImported for the same request has no effect. An invalid first token ends the
  // request.
  pair.decode.Tell({StartImported{.id = 1, .first = failed}});
  EXPECT_FALSE(pair.decode.engine.HasWork());
  EngineRequest request = Greedy(2, Count(9));
  request.kv = KvRole::kImport;
  pair.decode.Tell({request});
  pair.Step();
  pair.decode.Tell({StartImported{.id = 2, .first = {.new_tokens = {1000}}}});
  pair.Step();
  EXPECT_EQ(pair.seen[2].finish, FinishReason::kError);
  EXPECT_TRUE(pair.decode.engine.PoolIsWhole());
}

TEST(ImportedRequestsTest, APromptThatNeverFitsIsRefused) {
  EnginePair pair(SizedOptions(4, 64), SizedOptions(4, 4));
  EngineRequest request = Greedy(1, Count(16));  // no page for the first token
  request.kv = KvRole::kImport;
  pair.decode.Tell({request});
  pair.Step();
  EXPECT_EQ(pair.seen[1].finish, FinishReason::kError);
  EXPECT_THAT(pair.seen[1].error, HasSubstr("the cache holds 16"));
}

// Requests of the engine itself, and retractions, while pages are held.
TEST(ImportedRequestsTest, OwnRequestsRunBesideThem) {
  std::mt19937 random(4);
  EnginePair pair(SizedOptions(4, 14), SizedOptions(4, 16));
  std::vector<EngineRequest> requests, own;
  for (uint64_t id = 1; id <= 30; ++id) {
    requests.push_back(RandomSharedRequest(id, random));
    pair.Submit(requests.back());
    own.push_back(RandomSharedRequest(100 + id, random));
    pair.decode.Tell({own.back()});
    if (id % 4 == 0) pair.prefill.Tell({RandomSharedRequest(200 + id, random)});
    pair.Step();
  }
  pair.RunOut();
  ExpectOutputsOfOne(pair, requests);
  ExpectOutputsOfOne(pair, own);
}

// Records the rows that a draft model would compute.
class RowRecorder : public Drafter {
 public:
  void Draft(std::span<const DraftPart> parts, int64_t /*limit*/) override {
    for (const DraftPart& part : parts) {
      const auto [end, first] = rows.try_emplace(part.sequence->request.id, 0);
      if (first) computed[part.sequence->request.id] = part.sequence->draft_computed;
      end->second = std::max(end->second, part.begin + part.rows);
      // An MTP layer reads the token after each row.
      EXPECT_LT(part.begin + part.rows, part.sequence->length() + (part.decoding ? 1 : 0));
      wanted += part.wanted;
    }
  }
  std::map<uint64_t, int64_t> rows;      // the end of the rows of each request
  std::map<uint64_t, int64_t> computed;  // Sequence::draft_computed at the first call
  int64_t wanted = 0;
};

// The prefill engine's draft model computes all rows of a prompt, since the decode engine cannot.
TEST(ImportedRequests, DraftModelsOfBothEnginesHaveTheRowsOfThePrompt) {
  RowRecorder of_prefill, of_decode;
  RankEngine::Options prefill = SizedOptions(4, 64), decode = SizedOptions(5, 64);
  prefill.drafter = &of_prefill;
  prefill.max_drafts = 1;
  decode.drafter = &of_decode;
  decode.max_drafts = 3;
  EnginePair pair(prefill, decode);
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= 5; ++id) {
    requests.push_back(Greedy(id, Count(4 * static_cast<int32_t>(id) + 3), 8));
    pair.Submit(requests.back());
  }
  pair.RunOut();
  ExpectOutputsOfOne(pair, requests);
  EXPECT_EQ(of_prefill.wanted, 0);
  EXPECT_GT(of_decode.wanted, 0);
  for (const EngineRequest& request : requests) {
    const auto length = std::ssize(request.input_ids);
    EXPECT_EQ(of_prefill.rows[request.id], length);
    EXPECT_EQ(of_decode.computed[request.id], length);
  }
}

}  // namespace
}  // namespace switchyard
