// After an engine ends, a new engine continues its requests from the pages in the cache.
#include <gmock/gmock.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/format.h"
#include "engine/kv_cache/page_records.h"
#include "engine/sampler/random.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

struct Pages {
  int32_t page_size;
  int64_t num_pages;
  int32_t chunk;
  int32_t max_running;
  bool launches = false;  // passes run ahead, as on a GPU

  // The name of a test contains this text.
  friend void PrintTo(const Pages& p, std::ostream* out) {
    *out << fmt::format("pages {} x {} chunk {} running {}{}", p.num_pages, p.page_size, p.chunk,
                        p.max_running, p.launches ? " launched" : "");
  }
};

RankEngine::Options OptionsOf(const Pages& p) {
  return {.page_size = p.page_size,
          .num_pages = p.num_pages,
          .max_running_requests = p.max_running,
          .chunked_prefill_size = p.chunk,
          .context_length = 160,
          .eos_token_ids = {7},
          .random_seed = 5};
}

// A rank whose cache and records outlive its engines.
class LastingRank {
 public:
  explicit LastingRank(const Pages& p)
      : options_(OptionsOf(p)),
        model({.num_pages = p.num_pages, .page_size = p.page_size, .launches = p.launches}),
        memory_(PageRecords::Bytes(p.num_pages, p.page_size) + 64),
        records(Aligned(), p.num_pages, p.page_size) {
    options_.records = &records;
    Begin();
  }
  void Begin() {
    model.BeginEpoch();
    engine = std::make_unique<RankEngine>(options_, model);
  }
  // The engine ends within its next step, and leaves undefined values in the rows of this step. So
  // do launched passes in any case (FakeForward::BeginEpoch).
  void EndWithinAStep() {
    if (model.launches()) return;
    model.during = [this](uint64_t pass) { engine->AbortPass(pass); };
    engine->Step();
    model.during = nullptr;
  }

 private:
  std::span<std::byte> Aligned() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return std::span(memory_).subspan((64 - address % 64) % 64);
  }
  RankEngine::Options options_;

 public:
  FakeForward model;

 private:
  std::vector<std::byte> memory_;

 public:
  PageRecords records;
  std::unique_ptr<RankEngine> engine;
};

void KeepCommon(LastingRank& a, LastingRank& b) {
  std::vector<uint64_t> digests = a.records.Digests();
  const std::vector<uint64_t> other = b.records.Digests();
  digests.insert(digests.end(), other.begin(), other.end());
  a.records.KeepCommon(digests);
  b.records.KeepCommon(digests);
}

class LastingPages : public ::testing::TestWithParam<Pages> {
 protected:
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>(UniformDraw(99, ++draws_) * static_cast<double>(n));
  }
  EngineRequest RandomRequest(uint64_t id) {
    EngineRequest request{.id = id};
    const auto length = static_cast<int32_t>(1 + Below(100));
    request.input_ids = Count(length, static_cast<int32_t>(Below(3)) * 20);
    if (Below(2)) request.input_ids[Below(length)] = static_cast<int32_t>(Below(61));
    request.sampling.max_new_tokens = static_cast<int32_t>(1 + Below(40));
    request.sampling.temperature = Below(2) ? 0.9f : 0.0f;
    if (Below(3) == 0) request.cache_salt = std::string(Below(60), 's');
    if (Below(4) == 0) request.logprob = {.enabled = true, .start = 0, .top = 2};
    if (Below(4) == 0) request.routed_experts = {.enabled = true};
    return request;
  }

 private:
  uint64_t draws_ = 0;
};

// Two ranks of a group end up to a step apart, between or within steps.
TEST_P(LastingPages, OutputsAreThoseOfOneEngine) {
  constexpr uint64_t kRequests = 60;
  Rig alone(OptionsOf(GetParam()), 61, GetParam().launches);
  LastingRank a(GetParam()), b(GetParam());
  std::map<uint64_t, EngineRequest> requests;
  std::map<uint64_t, RequestOutput> seen;
  int64_t cached = 0, engines = 1;
  const auto take = [&](const StepOutputs& outputs) {
    for (const RequestOutput& news : outputs.outputs) {
      RequestOutput& all = seen.try_emplace(news.id, RequestOutput{.id = news.id}).first->second;
      ASSERT_EQ(all.finish, FinishReason::kNone);
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(all.new_tokens, news.new_tokens);
      append(all.input_logprobs, news.input_logprobs);
      append(all.output_logprobs, news.output_logprobs);
      append(all.routed_experts, news.routed_experts);
      all.finish = news.finish;
      all.matched = news.matched;
      all.cached_tokens = news.cached_tokens;
    }
  };
  for (int step = 0; requests.size() < kRequests || a.engine->HasWork(); ++step) {
    ASSERT_LT(step, 100000);
    if (requests.size() < kRequests && Below(2) == 0) {
      const uint64_t id = requests.size() + 1;
      requests[id] = RandomRequest(id);
      alone.Run(requests[id]);
      for (LastingRank* rank : {&a, &b}) rank->engine->Apply({requests[id]});
    }
    take(a.engine->Step());
    b.engine->Step();
    if (Below(12) != 0) continue;
    LastingRank& ahead = Below(2) ? a : b;
    const StepOutputs more = ahead.engine->Step();
    if (&ahead == &a && Below(2)) take(more);  // otherwise the front did not receive these outputs
    if (Below(2)) (Below(2) ? a : b).EndWithinAStep();
    KeepCommon(a, b);
    for (LastingRank* rank : {&a, &b}) rank->Begin();
    ++engines;
    for (auto [id, request] : requests) {
      if (const auto last = seen.find(id); last != seen.end()) {
        if (last->second.finish != FinishReason::kNone) continue;
        request.output_ids = last->second.new_tokens;
        request.cached_tokens = last->second.cached_tokens;
      }
      for (LastingRank* rank : {&a, &b}) rank->engine->Apply({request});
    }
    cached += a.engine->Stats().cached_pages;
    ASSERT_EQ(a.records.Digests(), b.records.Digests());
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(engines, 10);
  EXPECT_GT(cached, 0);
  EXPECT_TRUE(a.engine->PoolIsWhole());
  for (const auto& [id, want] : alone.seen) {
    SCOPED_TRACE(fmt::format("request {}", id));
    ExpectSameOutput(seen[id], want);
  }
  a.engine->Apply({FlushCache{}});
  EXPECT_EQ(a.engine->Stats().free_pages, GetParam().num_pages);
  EXPECT_EQ(a.records.count(), 0);
}

INSTANTIATE_TEST_SUITE_P(Pools, LastingPages,
                         ::testing::Values(Pages{1, 160, 16, 16}, Pages{4, 48, 7, 8},
                                           Pages{4, 1000, 64, 32}, Pages{16, 12, 5, 8},
                                           Pages{16, 200, 32, 64}, Pages{1, 160, 16, 16, true},
                                           Pages{4, 48, 7, 8, true}, Pages{4, 1000, 64, 32, true},
                                           Pages{16, 12, 5, 8, true},
                                           Pages{16, 200, 32, 64, true}));

TEST(LastingPagesTest, ARequestContinuesFromItsPages) {
  LastingRank rank({.page_size = 4, .num_pages = 64, .chunk = 8, .max_running = 8});
  const EngineRequest request = Greedy(1, Count(30), 20);
  rank.engine->Apply({request});
  for (int step = 0; step < 2; ++step) rank.engine->Step();  // two chunks of the prompt
  EXPECT_EQ(rank.records.count(), 4);
  rank.Begin();
  EXPECT_EQ(rank.engine->Stats().cached_pages, 4);
  rank.engine->Apply({request});
  std::vector<int32_t> tokens;
  int32_t cached = -1;
  while (std::ssize(tokens) < 11) {
    for (const RequestOutput& output : rank.engine->Step().outputs) {
      tokens.insert(tokens.end(), output.new_tokens.begin(), output.new_tokens.end());
      cached = output.cached_tokens;
    }
  }
  EXPECT_EQ(cached, 0);  // the request itself had computed these pages
  EXPECT_EQ(rank.engine->Stats().prefill_tokens, 14);

  // 30 tokens of the prompt and 10 of the output are in the cache: 10 pages.
  EngineRequest resumed = request;
  resumed.output_ids = tokens;
  rank.Begin();
  rank.engine->Apply({resumed});
  rank.engine->Step();
  EXPECT_EQ(rank.engine->Stats().prefill_tokens, 0);  // only the row of the last token
  LastingRank other({.page_size = 4, .num_pages = 64, .chunk = 8, .max_running = 8});
  KeepCommon(rank, other);  // `other` has no records, so none is common
  rank.Begin();
  EXPECT_EQ(rank.engine->Stats().cached_pages, 0);
}

// A page is recorded once the tokens of its launched pass are known. The pass in flight has none.
TEST(LastingPagesTest, LaunchedPassesAreRecordedWhenTheyHaveEnded) {
  LastingRank rank(
      {.page_size = 4, .num_pages = 64, .chunk = 8, .max_running = 8, .launches = true});
  rank.engine->Apply({Greedy(1, Count(30), 20)});
  std::vector<int64_t> counts;
  for (int step = 0; step < 8; ++step) {
    rank.engine->Step();
    counts.push_back(rank.records.count());
  }
  // Chunks of 8, 8, 8 and 6 tokens, then a token in each step.
  EXPECT_THAT(counts, ::testing::ElementsAre(0, 2, 4, 6, 7, 7, 8, 8));
  EXPECT_GT(rank.model.launched, 7);
  rank.Begin();
  EXPECT_EQ(rank.engine->Stats().cached_pages, 8);
}

TEST(LastingPagesTest, OtherRequestsCountThePagesAsCached) {
  LastingRank rank({.page_size = 4, .num_pages = 64, .chunk = 64, .max_running = 8});
  rank.engine->Apply({Greedy(1, Count(20), 2)});
  while (rank.engine->HasWork()) rank.engine->Step();
  rank.Begin();
  rank.engine->Apply({Greedy(2, Count(20), 2)});
  EXPECT_EQ(rank.engine->Step().outputs.at(0).cached_tokens, 16);
}

}  // namespace
}  // namespace switchyard
