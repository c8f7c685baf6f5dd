#include "engine/rank_engine.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <optional>

#include "engine/fake_forward.h"
#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"
#include "engine/sampler/softmax.h"
#include "engine/scheduler/batch.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Ids = std::vector<int32_t>;

// A rank with its fake model, and the merged outputs of each request.
class Rig {
 public:
  explicit Rig(RankEngine::Options options, int64_t vocab = 61)
      : model({.vocab = vocab, .num_pages = options.num_pages, .page_size = options.page_size}),
        engine(std::move(options), model) {}

  std::vector<EngineMessage> Tell(std::vector<ControlMessage> messages) {
    return engine.Apply(messages);
  }
  void Step() {
    for (RequestOutput& news : engine.Step().outputs) Merge(std::move(news));
  }
  void RunOut(int most_steps = 100000) {
    while (engine.HasWork() && most_steps-- > 0) Step();
    EXPECT_FALSE(engine.HasWork());
    EXPECT_TRUE(engine.PoolIsWhole());
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
    EXPECT_THAT(news.input_logprobs, IsEmpty());
    EXPECT_EQ(news.cached_tokens, all.cached_tokens);
    all.new_tokens.insert(all.new_tokens.end(), news.new_tokens.begin(), news.new_tokens.end());
    all.output_logprobs.insert(all.output_logprobs.end(), news.output_logprobs.begin(),
                               news.output_logprobs.end());
    all.routed_experts.insert(all.routed_experts.end(), news.routed_experts.begin(),
                              news.routed_experts.end());
    all.finish = news.finish;
    all.matched = news.matched;
    all.error = news.error;
  }
};

RankEngine::Options Roomy() {
  return {.page_size = 4, .num_pages = 256, .context_length = 512, .eos_token_ids = {7}};
}

EngineRequest Greedy(uint64_t id, Ids prompt, int32_t max_new = 8) {
  EngineRequest request{.id = id, .input_ids = std::move(prompt)};
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = max_new;
  request.sampling.ignore_eos = true;
  return request;
}

Ids Count(int32_t n, int32_t first = 0) {
  Ids ids(n);
  for (int32_t i = 0; i < n; ++i) ids[i] = (first + i) % 61;
  return ids;
}

bool SameLogprobs(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b) {
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
           same_list(l.asked, r.asked);
  });
}

TEST(RankEngine, GreedyFollowsTheModel) {
  Rig rig(Roomy());
  const RequestOutput out = rig.Run(Greedy(1, Count(10), 5));
  Ids tokens = Count(10);
  for (int i = 0; i < 5; ++i) tokens.push_back(ArgMax(rig.model.LogitsAfter(tokens)));
  EXPECT_EQ(out.new_tokens, Ids(tokens.begin() + 10, tokens.end()));
  EXPECT_EQ(out.finish, FinishReason::kLength);
  EXPECT_EQ(out.prompt_tokens, 10);
}

TEST(RankEngine, StopsAtEosAndStopIds) {
  Rig rig(Roomy());
  const Ids free_run = rig.Run(Greedy(1, Count(10), 40)).new_tokens;
  EngineRequest request = Greedy(2, Count(10), 40);
  request.sampling.stop_token_ids = {free_run[3]};
  const RequestOutput stopped = rig.Run(request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.matched, free_run[3]);
  EXPECT_EQ(stopped.new_tokens.back(), free_run[3]);

  RankEngine::Options options = Roomy();
  options.eos_token_ids = {free_run[2]};
  Rig other(options);
  request = Greedy(3, Count(10), 40);
  request.sampling.ignore_eos = false;
  EXPECT_THAT(other.Run(request).new_tokens.size(), testing::Le(3u));
  request.id = 4;
  request.sampling.ignore_eos = true;
  EXPECT_EQ(other.Run(request).new_tokens, free_run);
}

TEST(RankEngine, LongPromptsDoNotStallDecoding) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(4), 40)});
  rig.Step();
  rig.Tell({Greedy(2, Count(80), 4)});
  for (size_t tokens = 2; tokens <= 10; ++tokens) {
    rig.Step();
    EXPECT_THAT(rig.seen[1].new_tokens, SizeIs(tokens));
    EXPECT_EQ(rig.seen.count(2), 0u);
  }
  rig.Step();
  EXPECT_THAT(rig.seen[2].new_tokens, SizeIs(1));
  EXPECT_EQ(rig.model.most_rows, 9);
  rig.RunOut();
}

TEST(RankEngine, WithoutChunkingAPromptIsOnePass) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = -1;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(400), 1), Greedy(2, Count(400, 5), 1)});
  rig.Step();
  EXPECT_EQ(rig.model.most_rows, 400);
  EXPECT_EQ(rig.seen.count(2), 0u);
  rig.Step();
  EXPECT_EQ(rig.seen.count(2), 1u);
  rig.RunOut();
}

TEST(RankEngine, PrefixesAreReusedButNeverTheWholePrompt) {
  Rig rig(Roomy());
  const RequestOutput first = rig.Run(Greedy(1, Count(16), 4));
  EXPECT_EQ(first.cached_tokens, 0);
  const RequestOutput again = rig.Run(Greedy(2, Count(16), 4));
  EXPECT_EQ(again.cached_tokens, 12);  // 15 may be reused, in pages of 4
  EXPECT_EQ(again.new_tokens, first.new_tokens);

  Ids longer = Count(16);
  longer.insert(longer.end(), first.new_tokens.begin(), first.new_tokens.end());
  EXPECT_EQ(rig.Run(Greedy(3, longer, 4)).cached_tokens, 16);  // the last token was not computed
  EXPECT_EQ(rig.engine.Stats().cached_prompt_tokens, 28);

  const auto answers = rig.Tell({FlushCache{.ticket = 9}});
  EXPECT_TRUE(std::get<FlushResult>(answers.at(0)).done);
  EXPECT_EQ(std::get<FlushResult>(answers.at(0)).ticket, 9u);
  EXPECT_EQ(rig.engine.Stats().free_pages, 256);
  EXPECT_EQ(rig.Run(Greedy(4, Count(16), 4)).cached_tokens, 0);
}

TEST(RankEngine, ARunningRequestSharesItsPrompt) {
  Rig rig(Roomy());
  rig.Tell({Greedy(1, Count(16), 30)});
  rig.Step();
  rig.Tell({Greedy(2, Count(16), 30)});
  rig.Step();
  EXPECT_EQ(rig.seen[2].cached_tokens, 12);
  rig.RunOut();
  EXPECT_EQ(rig.seen[1].new_tokens, rig.seen[2].new_tokens);
}

TEST(RankEngine, FlushWaitsForNobody) {
  Rig rig(Roomy());
  rig.Tell({Greedy(1, Count(16), 4)});
  EXPECT_FALSE(std::get<FlushResult>(rig.Tell({FlushCache{}}).at(0)).done);
  rig.RunOut();
  EXPECT_TRUE(std::get<FlushResult>(rig.Tell({FlushCache{}}).at(0)).done);
}

TEST(RankEngine, InputLogprobsComeOnceAndBypassTheCacheWhereTheyMust) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 5;
  Rig rig(options);
  const Ids prompt = Count(18, 3);
  rig.Run(Greedy(1, prompt, 4));
  for (const int32_t start : {0, 1, 9, 17, 18, 30, -1}) {
    EngineRequest request = Greedy(100 + start, prompt, 3);
    request.logprob = {.enabled = true, .start = start, .top = 2, .token_ids = {5}};
    const RequestOutput out = rig.Run(request);
    const int32_t first = start < 0 ? 18 : std::min(start, 18);
    ASSERT_THAT(out.input_logprobs, SizeIs(18 - first)) << "start " << start;
    EXPECT_EQ(out.cached_tokens, std::min(16, std::max(0, first - 1) / 4 * 4));
    for (int32_t position = first; position < 18; ++position) {
      const PositionLogprobs& got = out.input_logprobs[position - first];
      EXPECT_EQ(got.token, prompt[position]);
      if (position == 0) {
        EXPECT_TRUE(std::isnan(got.logprob));
        EXPECT_THAT(got.top, IsEmpty());
      } else {
        EXPECT_TRUE(SameLogprobs(
            {got}, {LogprobsAt(rig.model.LogitsAfter(std::span(prompt).first(position)),
                               prompt[position], request.logprob)}));
      }
    }
    ASSERT_THAT(out.output_logprobs, SizeIs(3));
    EXPECT_EQ(out.output_logprobs[2].token, out.new_tokens[2]);
    EXPECT_THAT(out.output_logprobs[2].top, SizeIs(2));
    EXPECT_EQ(out.output_logprobs[2].top[0].token, out.new_tokens[2]);
  }
}

TEST(RankEngine, MaxNewTokensOfZeroAsksAboutThePromptOnly) {
  Rig rig(Roomy());
  EngineRequest request = Greedy(1, Count(10), 0);
  request.logprob = {.enabled = true, .start = 0};
  const RequestOutput out = rig.Run(request);
  EXPECT_THAT(out.new_tokens, IsEmpty());
  EXPECT_THAT(out.input_logprobs, SizeIs(10));
  EXPECT_EQ(out.finish, FinishReason::kLength);
}

TEST(RankEngine, RequestsThatCannotRunGetAnError) {
  RankEngine::Options options = Roomy();
  options.num_pages = 20;  // 80 tokens
  options.context_length = 100;
  Rig rig(options);
  EXPECT_THAT(rig.Run(Greedy(1, Count(81))).error, HasSubstr("the cache holds 80"));
  EXPECT_THAT(rig.Run(Greedy(2, Count(100))).error, HasSubstr("the context holds 99"));
  EXPECT_THAT(rig.Run(Greedy(3, {})).error, HasSubstr("empty"));
  EXPECT_THAT(rig.Run(Greedy(4, {1, 61})).error, HasSubstr("token id 61"));
  EXPECT_THAT(rig.Run(Greedy(5, {-1})).error, HasSubstr("token id -1"));
  EngineRequest request = Greedy(6, {1});
  request.sampling.logit_bias = {{99, 1.0f}};
  EXPECT_THAT(rig.Run(request).error, HasSubstr("logit_bias"));
  for (const auto& [id, out] : rig.seen) EXPECT_EQ(out.finish, FinishReason::kError);
  EXPECT_EQ(rig.model.passes, 0);
}

TEST(RankEngine, ARequestAloneMayFillCacheOrContext) {
  RankEngine::Options options = Roomy();
  options.num_pages = 20;
  Rig pool(options);
  const RequestOutput full = pool.Run(Greedy(1, Count(30), 1000));
  EXPECT_EQ(full.finish, FinishReason::kLength);
  EXPECT_THAT(full.new_tokens, SizeIs(50));
  EXPECT_THAT(pool.Run(Greedy(2, Count(80), 1000)).new_tokens, SizeIs(1));

  options = Roomy();
  options.context_length = 40;
  Rig context(options);
  EXPECT_THAT(context.Run(Greedy(1, Count(30), 1000)).new_tokens, SizeIs(10));
  EXPECT_THAT(context.Run(Greedy(2, Count(39), 1000)).new_tokens, SizeIs(1));
}

TEST(RankEngine, LogitsThatAreNotFiniteEndTheirRequestOnly) {
  Rig rig(Roomy());
  rig.model.poison = 60;
  rig.Tell({Greedy(1, Count(8), 6), Greedy(2, Ids{1, 60, 2, 3, 4, 5}, 6)});
  rig.RunOut();
  EXPECT_EQ(rig.seen[2].finish, FinishReason::kError);
  EXPECT_THAT(rig.seen[2].error, HasSubstr("not finite"));
  EXPECT_NE(rig.seen[1].finish, FinishReason::kNone);
  // Its pages are not shared with others.
  EXPECT_EQ(rig.Run(Greedy(3, Ids{1, 60, 2, 3, 4, 5}, 1)).cached_tokens, 0);
}

// The expert ids that FakeForward returns for tokens[start, end).
Ids Routed(const Ids& tokens, int32_t start) {
  Ids ids;
  for (int32_t i = start; i < std::ssize(tokens); ++i) ids.insert(ids.end(), {tokens[i], i});
  return ids;
}

TEST(RankEngine, RoutedExpertsCoverAllButTheLastToken) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 7;
  Rig rig(options);
  rig.Run(Greedy(1, Count(30), 3));  // leaves a prefix to reuse
  for (const int32_t start : {0, 9, 20, 30}) {
    EngineRequest request = Greedy(100 + start, Count(30), 5);
    request.routed_experts = {.enabled = true, .start = start};
    const RequestOutput out = rig.Run(request);
    Ids tokens = Count(30);
    tokens.insert(tokens.end(), out.new_tokens.begin(), out.new_tokens.end() - 1);
    EXPECT_EQ(out.routed_experts, Routed(tokens, start)) << start;
    EXPECT_EQ(out.cached_tokens, std::min(start, 29) / 4 * 4);  // requested positions are computed
  }
  EXPECT_THAT(rig.Run(Greedy(2, Count(30), 3)).routed_experts, IsEmpty());
}

TEST(RankEngine, RoutedExpertsFromBeyondThePromptAreRefused) {
  Rig rig(Roomy());
  EngineRequest request = Greedy(1, Count(10), 5);
  request.routed_experts = {.enabled = true, .start = 11};
  EXPECT_THAT(rig.Run(request).error, HasSubstr("routed_experts_start_len is 11"));
}

TEST(RankEngine, RequestsOfOtherGroupsAreNotItsOwn) {
  RankEngine::Options options = Roomy();
  options.group = 1;
  Rig rig(options);
  EngineRequest other = Greedy(1, Count(10)), mine = Greedy(2, Count(10));
  other.group = 0;
  mine.group = 1;
  rig.Tell({other, mine, AbortRequest{1}});
  EXPECT_EQ(rig.engine.Stats().waiting, 1);
  rig.RunOut();
  EXPECT_EQ(rig.seen.count(1), 0u);
  EXPECT_EQ(rig.seen[2].finish, FinishReason::kLength);
}

TEST(RankEngine, PlanCountsWhatTheOtherGroupsHaveToKnow) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(7), 40), Greedy(2, Count(1, 9), 40)});
  rig.Step();
  rig.Tell({Greedy(3, Count(40, 5), 4)});
  const StepCounts counts = rig.engine.Plan();
  EXPECT_EQ(counts.decode_tokens, 2);
  EXPECT_EQ(counts.tokens, 2 + 8);
  EXPECT_EQ(counts.logit_rows, 2);
  rig.engine.Run();
}

// A group without requests takes part in the others' passes.
TEST(RankEngine, RunsEmptyBatchesWhereAnotherGroupHasTokens) {
  Rig rig(Roomy());
  EXPECT_EQ(rig.engine.Plan().tokens, 0);
  const StepCounts nothing, something{.tokens = 5, .logit_rows = 1};
  EXPECT_THAT(rig.engine.Run(std::vector{nothing, something}).outputs, IsEmpty());
  EXPECT_EQ(rig.model.passes, 1);
  rig.engine.Plan();
  rig.engine.Run(std::vector{nothing, nothing});
  EXPECT_EQ(rig.model.passes, 1);
  EXPECT_EQ(rig.engine.Stats().steps, 0);
}

TEST(RankEngine, AbortsFreeEverythingAtOnce) {
  RankEngine::Options options = Roomy();
  options.chunked_prefill_size = 8;
  options.max_running_requests = 2;
  options.enable_radix_cache = false;
  Rig rig(options);
  rig.Tell({Greedy(1, Count(4), 50), Greedy(2, Count(100), 50), Greedy(3, Count(9), 50)});
  rig.Step();
  rig.Step();
  EXPECT_EQ(rig.engine.Stats().running, 2);
  EXPECT_EQ(rig.engine.Stats().waiting, 1);
  rig.Tell({AbortRequest{1}, AbortRequest{2}, AbortRequest{3}, AbortRequest{99}});
  EXPECT_EQ(rig.engine.Stats().free_pages, 256);
  EXPECT_TRUE(rig.engine.HasWork());  // the output with kAbort
  rig.Step();
  EXPECT_FALSE(rig.engine.HasWork());
  for (const uint64_t id : {1, 2, 3}) EXPECT_EQ(rig.seen[id].finish, FinishReason::kAbort);
  EXPECT_EQ(rig.seen.size(), 3u);
}

TEST(RankEngine, RetractedRequestsResumeAndNobodySees) {
  RankEngine::Options options = Roomy();
  options.num_pages = 12;  // 48 tokens
  Rig tight(options), roomy(Roomy());
  std::vector<ControlMessage> requests;
  for (uint64_t id = 1; id <= 4; ++id) {
    EngineRequest request = Greedy(id, Count(4, static_cast<int32_t>(id) * 10), 24);
    request.sampling.temperature = 1;
    request.logprob = {.enabled = true, .start = 0, .top = 1};
    request.routed_experts.enabled = true;
    requests.push_back(request);
    roomy.Run(request);
  }
  tight.Tell(requests);
  tight.RunOut();
  EXPECT_GT(tight.engine.Stats().retractions, 0);
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(tight.seen[id].new_tokens, roomy.seen[id].new_tokens);
    EXPECT_TRUE(SameLogprobs(tight.seen[id].input_logprobs, roomy.seen[id].input_logprobs));
    EXPECT_TRUE(SameLogprobs(tight.seen[id].output_logprobs, roomy.seen[id].output_logprobs));
    EXPECT_THAT(tight.seen[id].routed_experts, SizeIs(2 * (4 + 24 - 1)));
    EXPECT_EQ(tight.seen[id].routed_experts, roomy.seen[id].routed_experts);
  }
}

TEST(RankEngine, PromptLogprobsGoInChunksThatBoundTheirMemory) {
  EXPECT_EQ(MaxLogitRows(150000), 447);
  RankEngine::Options options = Roomy();
  options.max_logit_rows = 7;
  Rig rig(options);
  EngineRequest request = Greedy(1, Count(12), 1);
  request.logprob = {.enabled = true, .start = 3};
  EXPECT_THAT(rig.Run(request).input_logprobs, SizeIs(9));
  EXPECT_EQ(rig.model.passes, 2);  // rows 0 to 8, of which 2 need no logits, then 9 to 11
}

// Random workloads: whatever the pool size, chunk size, concurrent requests and aborts, a request
// gets the same tokens as when it runs alone.
struct Workload {
  int32_t page_size;
  int64_t num_pages;
  int32_t chunk;
  bool radix;
  int32_t max_running;
  int64_t logit_rows = 0;
};

class RandomWorkload : public ::testing::TestWithParam<Workload> {
 protected:
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>(UniformDraw(1234, ++draws_) * static_cast<double>(n));
  }
  EngineRequest RandomRequest(uint64_t id, int64_t longest) {
    EngineRequest request{.id = id};
    // Few first tokens and runs of counting, so that prefixes coincide.
    const auto length = static_cast<int32_t>(1 + Below(longest));
    request.input_ids = Count(length, static_cast<int32_t>(Below(3)) * 20);
    if (Below(2)) request.input_ids[Below(length)] = static_cast<int32_t>(Below(61));
    SamplingParams& p = request.sampling;
    p.max_new_tokens = static_cast<int32_t>(Below(40));
    p.temperature = Below(3) ? 0.9f : 0.0f;
    if (Below(2)) p.seed = Below(5);
    if (Below(4) == 0) p.top_p = 0.8f;
    if (Below(4) == 0) p.top_k = 7;
    if (Below(4) == 0) p.repetition_penalty = 1.2f;
    if (Below(4) == 0) p.frequency_penalty = 0.3f;
    if (Below(4) == 0) p.min_new_tokens = std::min(p.max_new_tokens, 5);
    p.ignore_eos = Below(2);
    if (Below(3) == 0)
      request.logprob = {
          .enabled = true, .start = static_cast<int32_t>(Below(longest)) - 1, .top = 2};
    if (Below(3) == 0)
      request.routed_experts = {.enabled = true, .start = static_cast<int32_t>(Below(length + 1))};
    return request;
  }

 private:
  uint64_t draws_ = 0;
};

TEST_P(RandomWorkload, GivesWhatEachRequestGetsAlone) {
  const Workload& w = GetParam();
  RankEngine::Options options{.page_size = w.page_size,
                              .num_pages = w.num_pages,
                              .max_running_requests = w.max_running,
                              .chunked_prefill_size = w.chunk,
                              .enable_radix_cache = w.radix,
                              .context_length = 160,
                              .eos_token_ids = {7},
                              .random_seed = 5,
                              .max_logit_rows = w.logit_rows};
  RankEngine::Options alone_options = options;
  alone_options.enable_radix_cache = false;
  alone_options.chunked_prefill_size = 1000;
  alone_options.max_logit_rows = 0;
  Rig crowd(options), twin(options), alone(alone_options);
  const int64_t longest = std::min<int64_t>(100, w.page_size * w.num_pages);

  uint64_t next_id = 1;
  std::map<uint64_t, bool> aborted;
  constexpr uint64_t kRequests = 300;
  while (next_id <= kRequests || crowd.engine.HasWork()) {
    std::vector<ControlMessage> messages;
    for (uint64_t n = Below(4); n > 0 && next_id <= kRequests; --n) {
      const EngineRequest request = RandomRequest(next_id++, longest);
      alone.Run(request);
      messages.push_back(request);
    }
    if (Below(6) == 0) {
      const uint64_t id = 1 + Below(next_id);
      const auto seen = crowd.seen.find(id);
      if (id < next_id && (seen == crowd.seen.end() || seen->second.finish == FinishReason::kNone))
        aborted[id] = true;
      messages.push_back(AbortRequest{id});
    }
    crowd.Tell(messages);
    twin.Tell(messages);
    crowd.Step();
    twin.Step();
    ASSERT_EQ(crowd.model.fingerprint, twin.model.fingerprint) << "equal ranks diverged";
    ASSERT_FALSE(HasFailure());
    ASSERT_LE(crowd.engine.Stats().running, w.max_running);
    ASSERT_LE(crowd.model.most_rows, w.chunk + w.max_running);
  }
  EXPECT_TRUE(crowd.engine.PoolIsWhole());
  ASSERT_EQ(crowd.seen.size(), kRequests);
  for (const auto& [id, want] : alone.seen) {
    const RequestOutput& got = crowd.seen[id];
    SCOPED_TRACE(fmt::format("request {}", id));
    if (aborted.count(id)) {
      EXPECT_EQ(got.finish, FinishReason::kAbort);
      ASSERT_LE(got.new_tokens.size(), want.new_tokens.size());
      EXPECT_TRUE(
          std::equal(got.new_tokens.begin(), got.new_tokens.end(), want.new_tokens.begin()));
      continue;
    }
    EXPECT_EQ(got.finish, want.finish) << got.error;
    EXPECT_EQ(got.new_tokens, want.new_tokens);
    EXPECT_EQ(got.matched, want.matched);
    EXPECT_TRUE(SameLogprobs(got.input_logprobs, want.input_logprobs));
    EXPECT_TRUE(SameLogprobs(got.output_logprobs, want.output_logprobs));
    EXPECT_EQ(got.routed_experts, want.routed_experts);
  }
  EXPECT_TRUE(std::get<FlushResult>(crowd.Tell({FlushCache{}}).at(0)).done);
  EXPECT_EQ(crowd.engine.Stats().free_pages, w.num_pages);
}

INSTANTIATE_TEST_SUITE_P(
    Pools, RandomWorkload,
    ::testing::Values(Workload{1, 128, 1, true, 8}, Workload{1, 110, 16, true, 64},
                      Workload{4, 30, 7, true, 16}, Workload{4, 30, 64, false, 16, 1},
                      Workload{16, 8, 64, true, 8, 3}, Workload{16, 10, 5, true, 32},
                      Workload{16, 200, 32, true, 64}, Workload{16, 200, 64, false, 256},
                      Workload{4, 1000, 64, true, 1}, Workload{1, 160, 64, false, 5}));

}  // namespace
}  // namespace switchyard
