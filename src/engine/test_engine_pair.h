// Two engines that share requests, and the transfer between them, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "engine/test_rank_engine.h"

namespace switchyard {

inline RankEngine::Options SizedOptions(int32_t page_size, int64_t pages, int32_t chunk = 6) {
  RankEngine::Options options = Roomy();
  options.page_size = page_size;
  options.num_pages = pages;
  options.chunked_prefill_size = chunk;
  return options;
}

// The same for a model with recurrent states. `more`: slots beyond those of requests.
inline RankEngine::Options WithSlots(RankEngine::Options options, int32_t running,
                                     int64_t more = 8) {
  options.max_running_requests = running;
  options.held_states = running;
  options.num_states = 3 * int64_t{running} + more;
  return options;
}

// Two engines, and the transfer between them, which copies rows as soon as they are computed.
class EnginePair {
 public:
  // `launches`: the models run passes ahead, as on GPUs.
  EnginePair(const RankEngine::Options& prefill_options, const RankEngine::Options& decode_options,
             bool launches = false)
      : prefill(prefill_options, 61, launches), decode(decode_options, 61, launches) {}

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
      if (transfer.from.state >= 0 && transfer.to->state >= 0)
        decode.model.CopyState(prefill.model, transfer.from.state, transfer.to->state);
    }
    if (!transfer.first) return;
    const bool lost = transfer.sent < transfer.first->prompt_tokens || !transfer.from.pinned ||
                      (transfer.to && transfer.to->state >= 0 && transfer.from.state < 0);
    if (!finished && lost) return;
    transfer.done = true;
    decode.Tell({StartImported{.id = id, .first = *transfer.first}});
    if (!finished) prefill.Tell({ReleaseKv{.id = id}});
  }

  std::map<uint64_t, Transfer> transfers_;
  std::set<uint64_t> at_prefill_, at_decode_;  // requests of the two engines
};

inline EngineRequest RandomSharedRequest(uint64_t id, std::mt19937& random) {
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
inline RequestOutput OutputOfOne(const EngineRequest& request) {
  Rig one(SizedOptions(4, 64));
  return one.Run(request);
}

inline void ExpectOutputsOfOne(EnginePair& pair, const std::vector<EngineRequest>& requests) {
  for (const EngineRequest& request : requests) {
    SCOPED_TRACE(fmt::format("request {}", request.id));
    ASSERT_TRUE(pair.seen.contains(request.id));
    ExpectSameOutput(pair.seen[request.id], OutputOfOne(request));
  }
}

}  // namespace switchyard
