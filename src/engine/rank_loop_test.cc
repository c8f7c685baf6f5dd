// The loop with attention groups, on scripted messages: what each step is told is exact.
#include "engine/rank_loop.h"

#include <gmock/gmock.h>

#include <map>

#include "engine/fake_forward.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr size_t kArenaBytes = size_t{32} << 20;

RankEngine::Options Options(int group) {
  return {.page_size = 4,
          .num_pages = 24,
          .max_running_requests = 8,
          .chunked_prefill_size = 16,
          .context_length = 90,
          .group = group};
}

EngineRequest Request(uint64_t id, int32_t group, int32_t length, int32_t max_new) {
  EngineRequest request{.id = id, .group = group};
  for (int32_t i = 0; i < length; ++i)
    request.input_ids.push_back((static_cast<int32_t>(id) + i) % 61);
  request.sampling.max_new_tokens = max_new;
  request.sampling.temperature = 0;
  return request;
}

// What the leader has heard.
struct Heard {
  std::map<uint64_t, RequestOutput> outputs;  // merged
  std::map<uint64_t, bool> flushed;
  std::map<uint64_t, std::vector<EngineStats>> stats;

  void Take(const EngineMessage& message) {
    if (const auto* flush = std::get_if<FlushResult>(&message)) {
      EXPECT_TRUE(flushed.emplace(flush->ticket, flush->done).second);
    } else if (const auto* report = std::get_if<StatsReport>(&message)) {
      EXPECT_TRUE(stats.emplace(report->ticket, report->groups).second);
    } else if (const auto* step = std::get_if<StepOutputs>(&message)) {
      for (const RequestOutput& news : step->outputs) {
        RequestOutput& all = outputs[news.id];
        all.finish = news.finish;
        all.error = news.error;
        all.new_tokens.insert(all.new_tokens.end(), news.new_tokens.begin(), news.new_tokens.end());
      }
    }
  }
  bool Ended(uint64_t id) const {
    const auto it = outputs.find(id);
    return it != outputs.end() && it->second.finish != FinishReason::kNone;
  }
};

using Script = std::function<std::vector<ControlMessage>(const Heard&)>;

// Four ranks, two groups.
Heard RunScript(Script script) {
  Heard heard;
  const RankLoopIo leader{.receive = [&](std::chrono::milliseconds) { return script(heard); },
                          .send = [&](const EngineMessage& message) { heard.Take(message); }};
  RunRankThreads(4, kArenaBytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm =
        RankComm::Create(std::move(arena), {.tp = 4, .ep = 1, .dp = 2}, rank, {.timeout = 20s});
    FakeForward model({.num_pages = 24, .page_size = 4});
    CheckedForward checked(model, *comm->attn_tp, 4);
    RankEngine engine(Options(comm->mesh.dp_rank()), checked);
    ServeRequests(engine, *comm, rank == 0 ? leader : RankLoopIo{});
    EXPECT_TRUE(engine.PoolIsWhole());
  });
  return heard;
}

std::vector<int32_t> Alone(const EngineRequest& request) {
  FakeForward model({.num_pages = 24, .page_size = 4});
  RankEngine engine(Options(*request.group), model);
  engine.Apply({request});
  Heard heard;
  while (engine.HasWork()) heard.Take(engine.Step());
  return heard.outputs[request.id].new_tokens;
}

TEST(RankLoop, EachGroupServesItsOwnRequests) {
  // Group 1 alone, then both, then group 0 alone.
  const EngineRequest first = Request(1, 1, 20, 6), second = Request(2, 0, 40, 30);
  int calls = 0;
  const Heard heard = RunScript([&](const Heard& so_far) -> std::vector<ControlMessage> {
    if (++calls == 1) return {first};
    if (calls == 3) return {second};
    if (!so_far.Ended(1) || !so_far.Ended(2)) return {};
    return {GetStats{5}, Shutdown{}};
  });
  EXPECT_EQ(heard.outputs.at(1).new_tokens, Alone(first));
  EXPECT_EQ(heard.outputs.at(2).new_tokens, Alone(second));
  ASSERT_THAT(heard.stats.at(5), SizeIs(2));
  EXPECT_EQ(heard.stats.at(5)[0].decode_tokens, 30);
  EXPECT_EQ(heard.stats.at(5)[1].decode_tokens, 6);
}

TEST(RankLoop, QuestionsAreAnsweredOnceForAllGroups) {
  int calls = 0;
  const Heard heard = RunScript([&](const Heard& so_far) -> std::vector<ControlMessage> {
    if (++calls == 1) return {FlushCache{6}, Request(1, 1, 20, 6), FlushCache{7}, GetStats{8}};
    if (!so_far.Ended(1)) return {};
    return {FlushCache{9}, GetStats{10}, Shutdown{}};
  });
  EXPECT_THAT(heard.flushed,
              ElementsAre(std::pair(6, true), std::pair(7, false), std::pair(9, true)));
  ASSERT_THAT(heard.stats.at(8), SizeIs(2));
  EXPECT_EQ(heard.stats.at(8)[0].waiting, 0);
  EXPECT_EQ(heard.stats.at(8)[1].waiting, 1);
  for (const EngineStats& group : heard.stats.at(10)) EXPECT_EQ(group.free_pages, 24);
  EXPECT_EQ(Total(heard.stats.at(10)).total_pages, 48);
}

TEST(RankLoop, TheLastNewsOfEveryGroupLeaveBeforeTheLoopEnds) {
  int calls = 0;
  const Heard heard = RunScript([&](const Heard&) -> std::vector<ControlMessage> {
    if (++calls == 1) return {Request(1, 1, 20, 60), Request(2, 0, 20, 60)};
    return {AbortRequest{1}, AbortRequest{2}, Shutdown{}};
  });
  EXPECT_EQ(heard.outputs.at(1).finish, FinishReason::kAbort);
  EXPECT_EQ(heard.outputs.at(2).finish, FinishReason::kAbort);
}

TEST(RankLoop, ARefusedRequestOfAnIdleGroupIsAnswered) {
  int calls = 0;
  const Heard heard = RunScript([&](const Heard& so_far) -> std::vector<ControlMessage> {
    if (++calls == 1) return {Request(1, 1, 89, 4), Request(2, 1, 90, 4)};
    if (!so_far.Ended(1) || !so_far.Ended(2)) return {};
    return {Shutdown{}};
  });
  EXPECT_EQ(heard.outputs.at(1).finish, FinishReason::kLength);
  EXPECT_EQ(heard.outputs.at(2).finish, FinishReason::kError);
}

}  // namespace
}  // namespace switchyard
