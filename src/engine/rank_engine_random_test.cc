#include <gmock/gmock.h>

#include <ostream>
#include <random>

#include "core/format.h"
#include "core/test_effort.h"
#include "engine/sampler/random.h"
#include "engine/test_rank_engine.h"

namespace switchyard {
namespace {

// Random workloads: a request gets the same tokens as when it runs alone, for any pool size, chunk
// size, concurrent requests and aborts.
struct Workload {
  int32_t page_size;
  int64_t num_pages;
  int32_t chunk;
  bool radix;
  int32_t max_running;
  int64_t logit_rows = 0;
  bool overlaps = false;  // passes are launched ahead
  int64_t states = 0;     // slots of recurrent states
  int32_t state_chunk = 0;

  // The name of a test contains this text.
  friend void PrintTo(const Workload& w, std::ostream* out) {
    *out << fmt::format(
        "pages {} x {} chunk {} radix {} running {} logit rows {} overlaps {} states {} in {}",
        w.num_pages, w.page_size, w.chunk, w.radix, w.max_running, w.logit_rows, w.overlaps,
        w.states, w.state_chunk);
  }
};

class RandomWorkload : public ::testing::TestWithParam<Workload> {
 protected:
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>(UniformDraw(1234, ++draws_) * static_cast<double>(n));
  }
  EngineRequest RandomRequest(uint64_t id, int64_t longest) {
    EngineRequest request{.id = id};
    // Prompts count upwards from a few first tokens, so that many share a prefix.
    const auto length = static_cast<int32_t>(1 + Below(longest));
    request.input_ids = Count(length, static_cast<int32_t>(Below(3)) * 20);
    if (Below(2)) request.input_ids[Below(length)] = static_cast<int32_t>(Below(61));
    SamplingParams& p = request.sampling;
    p.max_new_tokens = static_cast<int32_t>(Below(40));
    p.temperature = Below(3) ? 0.9f : 0.0f;
    if (Below(2)) p.seed = Below(5);
    if (Below(4) == 0) p.top_p = 0.8f;
    if (Below(4) == 0) p.top_k = 7;
    const bool plain = GetParam().overlaps && Below(4) > 0;  // its tokens are sampled by the model
    if (!plain && Below(4) == 0) p.repetition_penalty = 1.2f;
    if (!plain && Below(4) == 0) p.frequency_penalty = 0.3f;
    if (!plain && Below(4) == 0) p.min_new_tokens = std::min(p.max_new_tokens, 5);
    p.ignore_eos = Below(2);
    if (!plain && Below(3) == 0)
      request.logprob = {
          .enabled = true, .start = static_cast<int32_t>(Below(longest)) - 1, .top = 2};
    if (!plain && Below(3) == 0)
      request.routed_experts = {.enabled = true, .start = static_cast<int32_t>(Below(length + 1))};
    return request;
  }

 private:
  uint64_t draws_ = 0;
};

RankEngine::Options OptionsOf(const Workload& w) {
  return {.page_size = w.page_size,
          .num_pages = w.num_pages,
          .num_states = w.states,
          .state_chunk = w.state_chunk,
          .max_running_requests = w.max_running,
          .chunked_prefill_size = w.chunk,
          .enable_radix_cache = w.radix,
          .context_length = 160,
          .eos_token_ids = {7},
          .random_seed = 5,
          .max_logit_rows = w.logit_rows};
}

TEST_P(RandomWorkload, GivesWhatEachRequestGetsAlone) {
  const Workload& w = GetParam();
  const RankEngine::Options options = OptionsOf(w);
  RankEngine::Options alone_options = options;
  alone_options.enable_radix_cache = false;
  alone_options.chunked_prefill_size = 1000;
  alone_options.max_logit_rows = 0;
  alone_options.overlap_schedule = false;
  Rig crowd(options, 61, w.overlaps), twin(options, 61, w.overlaps);
  Rig alone(alone_options, 61, w.overlaps);
  const int64_t longest = std::min<int64_t>(100, w.page_size * w.num_pages);

  uint64_t next_id = 1;
  std::map<uint64_t, bool> aborted;
  constexpr uint64_t kRequests = FewerIfSanitized(300, 3);
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
  EXPECT_EQ(crowd.model.launched > 0, w.overlaps);
  ASSERT_EQ(crowd.seen.size(), kRequests);
  for (const auto& [id, want] : alone.seen) {
    const RequestOutput& got = crowd.seen[id];
    SCOPED_TRACE(fmt::format("request {}", id));
    ExpectSameOutput(got, want, aborted.count(id) > 0);
  }
  EXPECT_TRUE(std::get<FlushResult>(crowd.Tell({FlushCache{}}).at(0)).done);
  EXPECT_EQ(crowd.engine.Stats().free_pages, w.num_pages);
}

// Engines end between any two steps, with passes in flight. The next engine has an empty cache, and
// gets all open requests with their outputs.
TEST_P(RandomWorkload, GoesOnInANewEngine) {
  const Workload& w = GetParam();
  const RankEngine::Options options = OptionsOf(w);
  const int64_t longest = std::min<int64_t>(100, w.page_size * w.num_pages);
  constexpr uint64_t kRequests = 30;
  Rig alone(options, 61, w.overlaps);
  std::map<uint64_t, EngineRequest> requests;
  auto crowd = std::make_unique<Rig>(options, 61, w.overlaps);
  int engines = 1;
  for (int step = 0; requests.size() < kRequests || crowd->engine.HasWork(); ++step) {
    ASSERT_LT(step, 100000);
    if (requests.size() < kRequests && Below(2) == 0) {
      const uint64_t id = requests.size() + 1;
      requests[id] = RandomRequest(id, longest);
      alone.Run(requests[id]);
      crowd->Tell({requests[id]});
    }
    crowd->Step();
    if (Below(20 + 600 / static_cast<uint64_t>(w.chunk)) != 0) continue;
    auto next = std::make_unique<Rig>(options, 61, w.overlaps);
    next->seen = crowd->seen;
    crowd = std::move(next);
    ++engines;
    for (auto [id, request] : requests) {
      const auto seen = crowd->seen.find(id);
      if (seen != crowd->seen.end()) {
        if (seen->second.finish != FinishReason::kNone) continue;
        request.output_ids = seen->second.new_tokens;
        request.cached_tokens = seen->second.cached_tokens;
      }
      crowd->Tell({request});
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(engines, 1);
  EXPECT_TRUE(crowd->engine.PoolIsWhole());
  ASSERT_EQ(crowd->seen.size(), kRequests);
  for (const auto& [id, want] : alone.seen) {
    const RequestOutput& got = crowd->seen[id];
    SCOPED_TRACE(fmt::format("request {}", id));
    ExpectSameOutput(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pools, RandomWorkload,
    ::testing::Values(Workload{1, 128, 1, true, 8}, Workload{1, 110, 16, true, 64},
                      Workload{4, 30, 7, true, 16}, Workload{4, 30, 64, false, 16, 1},
                      Workload{16, 8, 64, true, 8, 3}, Workload{16, 10, 5, true, 32},
                      Workload{16, 200, 32, true, 64}, Workload{16, 200, 64, false, 256},
                      Workload{4, 1000, 64, true, 1}, Workload{1, 160, 64, false, 5}));

INSTANTIATE_TEST_SUITE_P(States, RandomWorkload,
                         ::testing::Values(Workload{1, 110, 16, true, 12, 0, false, 30},
                                           Workload{4, 30, 7, true, 16, 0, false, 33},
                                           Workload{4, 60, 64, true, 5, 0, false, 100},
                                           Workload{16, 10, 5, true, 8, 0, false, 16},
                                           Workload{4, 30, 64, false, 16, 1, false, 32},
                                           Workload{1, 110, 16, true, 12, 0, true, 30},
                                           Workload{4, 30, 7, true, 16, 0, true, 33},
                                           Workload{4, 30, 64, false, 16, 1, true, 32}));

// Chunks of states that are several pages, a page, a part of a page, and no multiple of a page.
INSTANTIATE_TEST_SUITE_P(ChunkedStates, RandomWorkload,
                         ::testing::Values(Workload{1, 110, 16, true, 12, 0, false, 30, 8},
                                           Workload{4, 30, 8, true, 16, 1, false, 33, 8},
                                           Workload{4, 60, 23, true, 5, 0, true, 100, 6},
                                           Workload{16, 10, 64, true, 8, 1, true, 16, 16},
                                           Workload{16, 20, 9, true, 8, 0, false, 16, 4},
                                           Workload{4, 30, 64, false, 16, 1, true, 32, 8}));

INSTANTIATE_TEST_SUITE_P(Overlapped, RandomWorkload,
                         ::testing::Values(Workload{1, 128, 1, true, 8, 0, true},
                                           Workload{1, 110, 16, true, 64, 0, true},
                                           Workload{4, 30, 7, true, 16, 0, true},
                                           Workload{4, 30, 64, false, 16, 1, true},
                                           Workload{16, 8, 64, true, 8, 3, true},
                                           Workload{16, 10, 5, true, 32, 0, true},
                                           Workload{16, 200, 32, true, 64, 0, true},
                                           Workload{4, 1000, 64, true, 1, 0, true},
                                           Workload{1, 160, 64, false, 5, 0, true}));

}  // namespace
}  // namespace switchyard
