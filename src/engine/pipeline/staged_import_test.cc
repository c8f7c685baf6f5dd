// Prompts that one engine with pipeline stages computes and another one continues.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/pipeline/test_stages.h"
#include "engine/speculative/test_drafters.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

RankEngine::Options Exchanging(int64_t pages, int32_t chunk) {
  RankEngine::Options options = OptionsWith(pages, chunk, /*max_running=*/6);
  options.all_results = true;
  return options;
}

// Two engines of two stages each, and the transfer between them. Rows are copied once the prompt
// is complete, between the caches of the same stages.
class StagedPair {
 public:
  StagedPair(const RankEngine::Options& from, const RankEngine::Options& to, int passes)
      : prefill(from, passes), decode(to, passes) {
    prefill.on_output = [this](const RequestOutput& output) {
      Transfer& transfer = transfers_[output.id];
      if (output.kv) transfer.from = *output.kv;
      if (!output.new_tokens.empty() || output.finish == FinishReason::kError)
        transfer.first = output;
    };
    decode.on_output = [this](const RequestOutput& output) {
      if (output.kv) transfers_[output.id].to = *output.kv;
    };
  }
  void Submit(EngineRequest request) {
    request.kv = KvRole::kExport;
    prefill.Tell({request, WantKv{.id = request.id}});
    request.kv = KvRole::kImport;
    decode.Tell({request});
  }
  void Step() {
    prefill.Step();
    decode.Step();
    for (auto& [id, transfer] : transfers_) Advance(id, transfer);
  }
  bool Open() const {
    return prefill.last_engine.HasWork() || decode.last_engine.HasWork() ||
           std::ranges::any_of(transfers_, [](const auto& entry) { return !entry.second.done; });
  }
  void RunOut() {
    for (int step = 0; step < 5000 && Open(); ++step) {
      Step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_FALSE(Open());
    prefill.RunOut();
    decode.RunOut();
  }

  Stages prefill, decode;

 private:
  struct Transfer {
    KvPages from;
    std::optional<KvPages> to;
    std::optional<RequestOutput> first;
    bool done = false;
  };

  void Advance(uint64_t id, Transfer& transfer) {
    if (transfer.done || !transfer.first) return;
    const bool finished = transfer.first->finish != FinishReason::kNone;
    const int64_t length = transfer.first->prompt_tokens;
    if (!finished && (!transfer.to || transfer.from.computed < length)) return;
    if (!finished) {
      EXPECT_EQ(transfer.from.pass, 0u);
      for (auto [to, from] :
           {std::pair(&decode.first, &prefill.first), {&decode.last, &prefill.last}})
        to->CopyRows(*from, transfer.from.pages, transfer.to->pages, transfer.to->begin, length);
    }
    transfer.done = true;
    decode.Tell({StartImported{.id = id, .first = *transfer.first}});
    if (!finished) prefill.Tell({ReleaseKv{.id = id}});
  }

  std::map<uint64_t, Transfer> transfers_;
};

std::vector<EngineRequest> SomeRequests(uint64_t count) {
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= count; ++id) {
    EngineRequest request = Greedy(id, Count(3 + static_cast<int32_t>(7 * id % 40), id % 3), 9);
    request.sampling.temperature = id % 2 ? 0.9f : 0.0f;
    request.sampling.seed = id;
    if (id % 4 == 0) request.sampling.repetition_penalty = 1.3f;
    if (id % 3 == 0) request.routed_experts = {.enabled = true, .start = 2};
    requests.push_back(request);
  }
  return requests;
}

TEST(StagedImport, OutputsAreThoseOfOneEngine) {
  for (const int64_t pages : {24, 80}) {
    for (const bool drafts : {false, true}) {
      SCOPED_TRACE(fmt::format("{} pages, drafts: {}", pages, drafts));
      OracleDrafter none(0, 61), oracle(0.8, 61);
      RankEngine::Options from = Exchanging(pages, 9), to = Exchanging(pages, 16);
      from.results_have_drafts = to.results_have_drafts = drafts;
      from.max_drafts = drafts ? 1 : 0;
      to.max_drafts = drafts ? 3 : 0;
      if (drafts) {
        from.drafter = &none;
        to.drafter = &oracle;
      }
      StagedPair pair(from, to, 3);
      const std::vector<EngineRequest> requests = SomeRequests(14);
      std::map<uint64_t, RequestOutput> want;
      for (const EngineRequest& request : requests) {
        want[request.id] = Rig(OptionsWith(80, 64, 6)).Run(request);
        oracle.outputs[request.id] = want[request.id].new_tokens;
      }
      for (const EngineRequest& request : requests) {
        pair.Submit(request);
        pair.Step();
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
      pair.RunOut();
      for (const auto& [id, alone] : want) {
        EXPECT_EQ(pair.decode.seen[id].new_tokens, alone.new_tokens) << id;
        EXPECT_EQ(pair.decode.seen[id].routed_experts, alone.routed_experts) << id;
        EXPECT_EQ(pair.decode.seen[id].error, "");
      }
      EXPECT_EQ(pair.decode.last_engine.Stats().accepted_tokens > 0, drafts);
      EXPECT_EQ(pair.prefill.last_engine.Stats().drafted_tokens, 0);
    }
  }
}

// The pages may have been those of another request, whose last rows a later stage still computes.
TEST(StagedImport, PagesAreGivenOnceThePassesInFlightHaveEnded) {
  constexpr int kPasses = 4;
  Stages stages(Exchanging(40, 16), kPasses);
  std::vector<ControlMessage> requests, aborts;
  for (uint64_t id = 10; id < 14; ++id) {
    requests.emplace_back(Greedy(id, Count(8, static_cast<int32_t>(id)), 60));
    aborts.emplace_back(AbortRequest{id});
  }
  stages.Tell(requests);
  for (int step = 0; step < 2 * kPasses; ++step) stages.Step();
  std::optional<int> given;
  int steps = 0;
  stages.on_output = [&](const RequestOutput& output) {
    if (output.id == 2 && output.kv) given = steps;
  };
  EngineRequest import = Greedy(2, Count(12, 3), 4);
  import.kv = KvRole::kImport;
  aborts.emplace_back(import);
  stages.Tell(aborts);
  for (; !given && steps < 20; ++steps) stages.Step();
  ASSERT_TRUE(given);
  EXPECT_GE(*given, 1);
  stages.Tell({AbortRequest{2}});
  stages.on_output = nullptr;
  stages.RunOut();
}

}  // namespace
}  // namespace switchyard
