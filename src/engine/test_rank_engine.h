// A RankEngine over FakeForward, for tests of the engine.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/fake_forward.h"
#include "engine/rank_engine.h"
#include "engine/scheduler/batch.h"

namespace switchyard {

using Ids = std::vector<int32_t>;

// A rank with its fake model, and the merged outputs of each request.
class Rig {
 public:
  // `launches`: with a model that samples tokens and runs passes ahead.
  explicit Rig(const RankEngine::Options& options, int64_t vocab = 61, bool launches = false,
               Pooling pooling = Pooling::kNone)
      : model({.vocab = vocab,
               .num_pages = options.num_pages,
               .page_size = options.page_size,
               .launches = launches,
               .pooling = pooling,
               .states = options.num_states,
               .state_chunk = options.state_chunk}),
        engine(options, model) {
    model.drafts = options.drafter != nullptr || options.max_forced > 0;
  }

  std::vector<EngineMessage> Tell(std::vector<ControlMessage> messages) {
    std::vector<EngineMessage> answers = engine.Apply(messages);
    for (const EngineMessage& answer : answers)
      if (const auto* step = std::get_if<StepOutputs>(&answer))
        for (const RequestOutput& news : step->outputs) Merge(news);
    return answers;
  }
  void Step() {
    for (RequestOutput& news : engine.Step().outputs) Merge(std::move(news));
  }
  void RunOut(int most_steps = 100000) {
    while (engine.HasWork() && most_steps-- > 0) Step();
    EXPECT_FALSE(engine.HasWork());
    EXPECT_TRUE(engine.PoolIsWhole());
  }
  // Like RunOut, for a model that throws errors now and then.
  void RunThroughErrors() {
    int errors = 0;
    while (engine.HasWork()) {
      try {
        Step();
      } catch (const Error&) {
        ASSERT_LT(++errors, 1000);
      }
    }
    EXPECT_GT(errors, 2);
    EXPECT_TRUE(engine.PoolIsWhole());
  }
  // Returns a callback that throws an error in every third pass.
  std::function<void(uint64_t)> FailSometimes() {
    return [](uint64_t pass) {
      if (pass % 3 == 0) throw Resource("a device is lost");
    };
  }
  RequestOutput Run(const EngineRequest& request) {
    Tell({request});
    RunOut();
    return seen[request.id];
  }

  FakeForward model;
  RankEngine engine;
  std::map<uint64_t, RequestOutput> seen;

 private:
  void Merge(RequestOutput news) {
    const auto [entry, first] = seen.try_emplace(news.id, news);
    if (first) return;
    RequestOutput& all = entry->second;
    EXPECT_EQ(all.finish, FinishReason::kNone) << "output after the end of request " << news.id;
    EXPECT_THAT(news.input_logprobs, ::testing::IsEmpty());
    EXPECT_EQ(news.cached_tokens, all.cached_tokens);
    all.new_tokens.insert(all.new_tokens.end(), news.new_tokens.begin(), news.new_tokens.end());
    all.output_logprobs.insert(all.output_logprobs.end(), news.output_logprobs.begin(),
                               news.output_logprobs.end());
    all.routed_experts.insert(all.routed_experts.end(), news.routed_experts.begin(),
                              news.routed_experts.end());
    all.finish = news.finish;
    all.matched = news.matched;
    all.error = news.error;
    all.error_kind = news.error_kind;
  }
};

inline RankEngine::Options Roomy() {
  return {.page_size = 4, .num_pages = 256, .context_length = 512, .eos_token_ids = {7}};
}

inline EngineRequest Greedy(uint64_t id, Ids prompt, int32_t max_new = 8) {
  EngineRequest request{.id = id, .input_ids = std::move(prompt)};
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = max_new;
  request.sampling.ignore_eos = true;
  return request;
}

inline Ids Count(int32_t n, int32_t first = 0) {
  Ids ids(n);
  for (int32_t i = 0; i < n; ++i) ids[i] = (first + i) % 61;
  return ids;
}

inline bool SameLogprobs(const std::vector<PositionLogprobs>& a,
                         const std::vector<PositionLogprobs>& b) {
  const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  const auto same_list = [](const std::vector<TokenLogprob>& x,
                            const std::vector<TokenLogprob>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](const TokenLogprob& l, const TokenLogprob& r) {
                        return l.token == r.token && l.logprob == r.logprob;
                      });
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& l, const auto& r) {
    return l.token == r.token && same(l.logprob, r.logprob) && same_list(l.top, r.top) &&
           same_list(l.requested, r.requested);
  });
}

// Whether two runs of a request gave the same output. `aborted`: the run of `got` was aborted, so
// its tokens are the beginning of those of `want`.
inline void ExpectSameOutput(const RequestOutput& got, const RequestOutput& want,
                             bool aborted = false) {
  if (aborted) {
    EXPECT_EQ(got.finish, FinishReason::kAbort);
    ASSERT_LE(got.new_tokens.size(), want.new_tokens.size());
    EXPECT_TRUE(std::equal(got.new_tokens.begin(), got.new_tokens.end(), want.new_tokens.begin()));
    return;
  }
  EXPECT_EQ(got.finish, want.finish) << got.error;
  EXPECT_EQ(got.error, want.error);
  EXPECT_EQ(got.new_tokens, want.new_tokens);
  EXPECT_EQ(got.matched, want.matched);
  EXPECT_TRUE(SameLogprobs(got.input_logprobs, want.input_logprobs));
  EXPECT_TRUE(SameLogprobs(got.output_logprobs, want.output_logprobs));
  EXPECT_EQ(got.routed_experts, want.routed_experts);
}

// Requests 1 to `count`: greedy and sampled ones, with a penalty, log-probabilities and routed
// experts among them.
inline std::vector<EngineRequest> MixedRequests(uint64_t count) {
  std::vector<EngineRequest> requests;
  for (uint64_t id = 1; id <= count; ++id) {
    EngineRequest request = Greedy(id, Count(5 + 4 * static_cast<int32_t>(id), id % 3 * 20), 12);
    if (id % 2) request.sampling.temperature = 0.9f;
    if (id == 3) request.sampling.repetition_penalty = 1.3f;
    if (id == 4) request.logprob = {.enabled = true, .start = 2, .top = 2};
    if (id == 5) request.routed_experts = {.enabled = true};
    requests.push_back(request);
  }
  return requests;
}

// Few pages and short chunks, so that requests are retracted and prompts take several passes.
inline RankEngine::Options TightOptions() {
  RankEngine::Options options = Roomy();
  options.num_pages = 40;
  options.chunked_prefill_size = 9;
  return options;
}

}  // namespace switchyard
