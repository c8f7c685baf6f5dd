// A prompt that one engine computes and another one continues, with equal outputs.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "engine/speculative/drafter.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

RankEngine::Options Sized(int32_t page_size, int64_t pages, int32_t chunk = 6) {
  RankEngine::Options options = Roomy();
  options.page_size = page_size;
  options.num_pages = pages;
  options.chunked_prefill_size = chunk;
  return options;
}

// Two engines, and the transfer between them, which copies rows as soon as they are computed.
class Pair {
 public:
  Pair(const RankEngine::Options& prefill_options, const RankEngine::Options& decode_options)
      : prefill(prefill_options), decode(decode_options) {}

  void Submit(const EngineRequest& request) {
    SubmitPrefill(request);
    SubmitDecode(request);
  }
  void SubmitPrefill(EngineRequest request) {
    request.kv = KvRole::kExport;
    prefill.Tell({request});
    at_prefill_.insert(request.id);
  }
  void SubmitDecode(EngineRequest request) {
    request.kv = KvRole::kImport;
    decode.Tell({request});
    at_decode_.insert(request.id);
  }

  // One step of each engine, and what the transfer does then.
  void Step() {
    for (RequestOutput& output : prefill.engine.Step().outputs) OnPrefill(std::move(output));
    for (RequestOutput& output : decode.engine.Step().outputs) OnDecode(std::move(output));
    for (auto& [id, transfer] : transfers_) Advance(id, transfer);
  }
  // Pauses both engines and continues.
  void Pause(PauseAction action) {
    const SetControls pause{.ticket = 1, .controls = {.paused = true}, .action = action};
    for (EngineMessage& answer : prefill.engine.Apply({pause}))
      if (auto* step = std::get_if<StepOutputs>(&answer))
        for (RequestOutput& output : step->outputs) OnPrefill(std::move(output));
    for (EngineMessage& answer : decode.engine.Apply({pause}))
      if (auto* step = std::get_if<StepOutputs>(&answer))
        for (RequestOutput& output : step->outputs) OnDecode(std::move(output));
    EXPECT_FALSE(prefill.engine.HasWork() || decode.engine.HasWork());
    for (auto& [id, transfer] : transfers_) Advance(id, transfer);
    prefill.Tell({SetControls{}});
    decode.Tell({SetControls{}});
  }
  void RunOut() {
    for (int step = 0; step < 5000 && Open(); ++step) Step();
    EXPECT_FALSE(Open());
    EXPECT_TRUE(prefill.engine.PoolIsWhole());
    EXPECT_TRUE(decode.engine.PoolIsWhole());
  }

  Rig prefill, decode;
  std::map<uint64_t, RequestOutput> seen;      // of the decode engine, merged
  std::map<uint64_t, RequestOutput> exported;  // the last output of the prefill engine
  std::map<uint64_t, KvPages> imported;        // the pages of the decode engine
  bool transfers = true;
  uint64_t skipped = 0;  // chunks that were sent more than once

 private:
  struct Transfer {
    KvPages from;
    std::optional<KvPages> to;
    int64_t sent = 0;
    std::optional<RequestOutput> first;
    bool asked = false, done = false;
  };

  bool Open() const {
    if (prefill.engine.HasWork() || decode.engine.HasWork()) return true;
    return transfers &&
           std::ranges::any_of(transfers_, [](const auto& entry) { return !entry.second.done; });
  }

  void OnPrefill(RequestOutput output) {
    if (output.id >= 200) return;  // not transferred
    exported[output.id] = output;
    Transfer& transfer = transfers_[output.id];
    if (output.kv) {
      const bool same = output.kv->end >= transfer.from.end &&
                        std::equal(transfer.from.pages.begin(), transfer.from.pages.end(),
                                   output.kv->pages.begin(),
                                   output.kv->pages.begin() + std::min(transfer.from.pages.size(),
                                                                       output.kv->pages.size()));
      if (!same) {
        transfer.sent = 0;
        ++skipped;
      }
      transfer.from = *output.kv;
    }
    const bool finished = output.finish != FinishReason::kNone;
    if (output.new_tokens.empty() && !finished) return;
    EXPECT_TRUE(output.new_tokens.empty() || !transfer.first) << "a second first token";
    if (!transfer.done) transfer.first = std::move(output);
  }

  void OnDecode(RequestOutput output) {
    if (output.kv) {
      imported[output.id] = *output.kv;
      transfers_[output.id].to = *output.kv;
      return;
    }
    if (output.finish == FinishReason::kAbort) transfers_[output.id].done = true;
    const auto [entry, first] = seen.try_emplace(output.id, output);
    if (first) return;
    RequestOutput& all = entry->second;
    EXPECT_EQ(all.finish, FinishReason::kNone);
    all.new_tokens.insert(all.new_tokens.end(), output.new_tokens.begin(), output.new_tokens.end());
    all.output_logprobs.insert(all.output_logprobs.end(), output.output_logprobs.begin(),
                               output.output_logprobs.end());
    all.routed_experts.insert(all.routed_experts.end(), output.routed_experts.begin(),
                              output.routed_experts.end());
    all.finish = output.finish;
    all.matched = output.matched;
    all.error = output.error;
  }

  void Advance(uint64_t id, Transfer& transfer) {
    if (!transfers || transfer.done) return;
    const bool finished = transfer.first && transfer.first->finish != FinishReason::kNone;
    if (!finished && !transfer.to) return;
    if (!at_prefill_.contains(id) || !at_decode_.contains(id)) return;
    if (!finished && !std::exchange(transfer.asked, true)) {
      for (EngineMessage& answer : prefill.engine.Apply({WantKv{.id = id}}))
        for (RequestOutput& output : std::get<StepOutputs>(answer).outputs)
          OnPrefill(std::move(output));
    }
    if (!finished) {
      const int64_t from = std::max(transfer.sent, transfer.to->begin);
      if (from < transfer.from.end)
        decode.model.CopyRows(prefill.model, transfer.from.pages, transfer.to->pages, from,
                              transfer.from.end);
      transfer.sent = std::max(from, transfer.from.end);
    }
    if (!transfer.first) return;
    const bool lost = transfer.sent < transfer.first->prompt_tokens || !transfer.from.pinned;
    if (!finished && lost) return;
    transfer.done = true;
    decode.Tell({StartImported{.id = id, .first = *transfer.first}});
    if (!finished) prefill.Tell({ReleaseKv{.id = id}});
  }

  std::map<uint64_t, Transfer> transfers_;
  std::set<uint64_t> at_prefill_, at_decode_;  // requests of the two engines
};

EngineRequest RandomRequest(uint64_t id, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int32_t>(random() % n); };
  EngineRequest request{.id = id};
  const int32_t length = 1 + below(24), first = below(5);
  for (int32_t i = 0; i < length; ++i) request.input_ids.push_back((first + i) % 61);
  SamplingParams& p = request.sampling;
  p.max_new_tokens = below(12);
  p.min_new_tokens = std::min(p.max_new_tokens, below(4));
  p.temperature = below(2) ? 0.9f : 0.0f;
  p.seed = below(4);
  if (below(3) == 0) p.repetition_penalty = 1.2f;
  if (below(3) == 0) p.frequency_penalty = 0.5f;
  if (below(3) == 0) p.stop_token_ids = {below(61), below(61)};
  if (below(2) == 0) request.logprob = {.enabled = true, .start = below(3) - 1, .top = below(3)};
  if (below(3) == 0) request.routed_experts = {.enabled = true, .start = below(length + 1)};
  if (below(4) == 0) request.cache_salt = "salt";
  return request;
}

// The output of the request on one engine that runs it alone.
RequestOutput Expected(const EngineRequest& request) {
  Rig one(Sized(4, 64));
  return one.Run(request);
}

void ExpectSame(Pair& pair, const std::vector<EngineRequest>& requests) {
  for (const EngineRequest& request : requests) {
    SCOPED_TRACE(fmt::format("request {}", request.id));
    ASSERT_TRUE(pair.seen.contains(request.id));
    ExpectSameOutput(pair.seen[request.id], Expected(request));
  }
}

TEST(ImportedRequestsTest, OutputsEqualThoseOfOneEngine) {
  std::mt19937 random(1);
  for (const auto& [from, to] : {std::pair(4, 4), {3, 8}, {8, 1}, {1, 5}}) {
    SCOPED_TRACE(fmt::format("pages of {} and {}", from, to));
    Pair pair(Sized(from, 400 / from), Sized(to, 400 / to));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 40; ++id) {
      requests.push_back(RandomRequest(id, random));
      pair.Submit(requests.back());
      if (random() % 3 == 0) pair.Step();
    }
    pair.RunOut();
    ExpectSame(pair, requests);
  }
}

TEST(ImportedRequestsTest, PausesChangeNoOutput) {
  std::mt19937 random(5);
  for (const PauseAction action : {PauseAction::kNone, PauseAction::kRetract}) {
    Pair pair(Sized(4, 40), Sized(8, 20));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 40; ++id) {
      requests.push_back(RandomRequest(id, random));
      pair.Submit(requests.back());
      pair.Step();
      if (random() % 2 == 0) pair.Pause(action);
    }
    pair.RunOut();
    ExpectSame(pair, requests);
  }
}

TEST(ImportedRequestsTest, FullCachesDelayRequestsOnly) {
  std::mt19937 random(2);
  // A prompt and its output have at most 36 tokens.
  Pair pair(Sized(4, 11), Sized(4, 14));
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= 60; ++id) {
    requests.push_back(RandomRequest(id, random));
    pair.Submit(requests.back());
  }
  pair.RunOut();
  ExpectSame(pair, requests);
}

// Each engine has pages for one prompt. The prefill engine computes the second request first, and
// the decode engine has pages for the first one.
TEST(ImportedRequestsTest, TwoFullCachesDoNotWaitForEachOther) {
  Pair pair(Sized(4, 8, 512), Sized(4, 9));
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
  ExpectSame(pair, requests);
  EXPECT_EQ(pair.prefill.engine.Stats().retractions, 1);
  EXPECT_EQ(pair.prefill.engine.Stats().waiting, 0);
}

// Requests arrive at both engines in different orders.
TEST(ImportedRequestsTest, FullCachesDelayRequestsInAnyOrder) {
  std::mt19937 random(6);
  int64_t parked = 0;
  for (int round = 0; round < 20; ++round) {
    Pair pair(Sized(4, 11), Sized(4, 14));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 20; ++id) requests.push_back(RandomRequest(id, random));
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
    ExpectSame(pair, requests);
    parked += pair.prefill.engine.Stats().retractions;
  }
  EXPECT_GT(parked, 0);
}

TEST(ImportedRequestsTest, CachedPrefixesAreNotTransferred) {
  Pair pair(Sized(4, 64), Sized(8, 32));
  pair.Submit(Greedy(1, Count(20)));
  pair.RunOut();
  EXPECT_EQ(pair.imported[1].begin, 0);
  EXPECT_EQ(pair.imported[1].end, 20);
  pair.Submit(Greedy(2, Count(22)));
  pair.Submit(Greedy(3, Count(16)));
  pair.RunOut();
  EXPECT_EQ(pair.imported[2].begin, 16);  // two pages of 8
  EXPECT_EQ(pair.imported[3].begin, 16);  // the whole prompt
  ExpectSame(pair, {Greedy(1, Count(20)), Greedy(2, Count(22)), Greedy(3, Count(16))});
  EXPECT_EQ(pair.seen[2].cached_tokens, 20);  // on the engine that computed the prompt
}

TEST(ImportedRequestsTest, ARequestThatEndsWithItsFirstTokenNeedsNoPages) {
  Pair pair(Sized(4, 64), Sized(4, 64));
  EngineRequest request = Greedy(1, Count(9), 1);
  pair.Submit(request);
  pair.RunOut();
  ExpectSame(pair, {request});
  EXPECT_EQ(pair.seen[1].finish, FinishReason::kLength);
}

TEST(ImportedRequestsTest, HeldPagesStayUntilTheirRelease) {
  Pair pair(Sized(4, 6, 512), Sized(4, 64));
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
    Pair pair(Sized(4, 20), Sized(4, 20));
    std::vector<EngineRequest> requests;
    for (uint64_t id = 1; id <= 6; ++id) {
      requests.push_back(RandomRequest(id, random));
      pair.Submit(requests.back());
    }
    const uint64_t victim = 1 + random() % 6;
    for (auto steps = random() % 12; steps > 0; --steps) pair.Step();
    pair.prefill.Tell({AbortRequest{victim}});
    pair.decode.Tell({AbortRequest{victim}});
    // Pair does not start an aborted request later, as a transfer between servers would not.
    pair.RunOut();
    std::erase_if(requests, [&](const EngineRequest& r) { return r.id == victim; });
    ExpectSame(pair, requests);
  }
}

TEST(ImportedRequestsTest, ErrorsOfTheOtherEngineEndTheRequest) {
  Pair pair(Sized(4, 64), Sized(4, 64));
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
  Pair pair(Sized(4, 64), Sized(4, 4));
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
  Pair pair(Sized(4, 14), Sized(4, 16));
  std::vector<EngineRequest> requests, own;
  for (uint64_t id = 1; id <= 30; ++id) {
    requests.push_back(RandomRequest(id, random));
    pair.Submit(requests.back());
    own.push_back(RandomRequest(100 + id, random));
    pair.decode.Tell({own.back()});
    if (id % 4 == 0) pair.prefill.Tell({RandomRequest(200 + id, random)});
    pair.Step();
  }
  pair.RunOut();
  ExpectSame(pair, requests);
  ExpectSame(pair, own);
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
  RankEngine::Options prefill = Sized(4, 64), decode = Sized(5, 64);
  prefill.drafter = &of_prefill;
  prefill.max_drafts = 1;
  decode.drafter = &of_decode;
  decode.max_drafts = 3;
  Pair pair(prefill, decode);
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= 5; ++id) {
    requests.push_back(Greedy(id, Count(4 * static_cast<int32_t>(id) + 3), 8));
    pair.Submit(requests.back());
  }
  pair.RunOut();
  ExpectSame(pair, requests);
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
