// The loop with attention groups. Scripted messages fix the input of each step.
#include "engine/rank_loop.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "comm/device/rank_threads.h"
#include "core/json.h"
#include "core/temporary_directory.h"
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

// All messages that the leader has sent to the front.
struct Heard {
  std::map<uint64_t, RequestOutput> outputs;  // by id, merged
  std::map<uint64_t, bool> flushed;
  std::map<uint64_t, std::vector<EngineStats>> stats;
  std::map<uint64_t, RecordResult> records;
  std::map<uint64_t, ExpertLoadReport> loads;
  std::map<uint64_t, EplbReport> eplb;
  std::map<uint64_t, ProfileReport> profiles;
  std::map<uint64_t, int64_t> controls;

  void Take(const EngineMessage& message) {
    if (const auto* flush = std::get_if<FlushResult>(&message)) {
      EXPECT_TRUE(flushed.emplace(flush->ticket, flush->done).second);
    } else if (const auto* report = std::get_if<StatsReport>(&message)) {
      EXPECT_TRUE(stats.emplace(report->ticket, report->groups).second);
    } else if (const auto* record = std::get_if<RecordResult>(&message)) {
      EXPECT_TRUE(records.emplace(record->ticket, *record).second);
    } else if (const auto* load = std::get_if<ExpertLoadReport>(&message)) {
      EXPECT_TRUE(loads.emplace(load->ticket, *load).second);
    } else if (const auto* moving = std::get_if<EplbReport>(&message)) {
      EXPECT_TRUE(eplb.emplace(moving->ticket, *moving).second);
    } else if (const auto* profile = std::get_if<ProfileReport>(&message)) {
      EXPECT_TRUE(profiles.emplace(profile->ticket, *profile).second);
    } else if (const auto* set = std::get_if<ControlsSet>(&message)) {
      EXPECT_TRUE(controls.emplace(set->ticket, set->requests).second);
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

// Four ranks, two groups. `profiles`: with a profiler.
Heard RunScript(Script script, const ExpertRecorderOptions& recorded = {}, bool profiles = false) {
  Heard heard;
  const RankLoopIo leader{.receive = [&](std::chrono::milliseconds) { return script(heard); },
                          .send = [&](const EngineMessage& message) { heard.Take(message); }};
  RunRankThreads(4, kArenaBytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm =
        RankComm::Create(std::move(arena), {.tp = 4, .ep = 1, .dp = 2}, rank, {.timeout = 20s});
    FakeForward model({.num_pages = 24, .page_size = 4});
    CheckedForward checked(model, *comm->attn_tp, 4);
    profile::Profiler profiler(rank, comm->mesh.Title());
    RankEngine::Options options = Options(comm->mesh.dp_rank());
    options.profiler = profiles ? &profiler : nullptr;
    RankEngine engine(options, checked);
    std::optional<ExpertRecorder> recorder;
    if (recorded.any())
      recorder.emplace(recorded, ExpertRecorderShape{.layers = 2, .experts = 4, .top_k = 1}, *comm);
    ServeRequests(engine, *comm, rank == 0 ? leader : RankLoopIo{}, recorder ? &*recorder : nullptr,
                  nullptr, options.profiler);
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

// The destructors of a failed rank may have to wait for a loading thread. Other ranks must get the
// error before that.
TEST(RankLoop, AFailureIsReportedBeforeObjectsAreDestroyed) {
  std::atomic<int> ended = 0;
  const RankLoopIo leader{.receive = [](std::chrono::milliseconds) -> std::vector<ControlMessage> {
                            throw Error(ErrorKind::kResource, "the line is cut");
                          },
                          .send = [](const EngineMessage&) {}};
  const auto run = [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm =
        RankComm::Create(std::move(arena), {.tp = 4, .ep = 1, .dp = 2}, rank, {.timeout = 20s});
    FakeForward model({.num_pages = 24, .page_size = 4});
    RankEngine engine(Options(comm->mesh.dp_rank()), model);
    try {
      ServeRequests(engine, *comm, rank == 0 ? leader : RankLoopIo{});
    } catch (const Error& error) {
      if (rank == 0) {
        for (int i = 0; i < 1000 && ended < 3; ++i) std::this_thread::sleep_for(10ms);
        EXPECT_EQ(ended, 3);
        throw;
      }
      EXPECT_STREQ(error.what(), "rank 0 failed: the line is cut");
      ++ended;
    }
  };
  EXPECT_THROW(RunRankThreads(4, kArenaBytes, run), Error);
}

// An aborted rank ends while it loads, and not after it has loaded: large models take minutes.
TEST(RankLoop, AnAbortEndsLoading) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/qwen3_moe";
  config.load_format = "dummy";  // several reports of progress, one for each 64 matrices
  config.model_override_args = R"({"num_hidden_layers": 8})";
  config.max_total_tokens = 256;
  config.device = "cpu";
  config.cpu_bind = "none";
  config.threads_per_rank = 1;
  const EnginePlan plan = MakePlan(config);
  const auto arena = SharedArena::Create(1, plan.symmetric_bytes_per_rank);
  std::vector<LoadProgress> reports;
  const RankLoopIo leader{.receive = {}, .send = [&](const EngineMessage& message) {
                            if (const auto* report = std::get_if<LoadProgress>(&message)) {
                              reports.push_back(*report);
                              arena->AbortHere("stopped");
                            }
                          }};
  const auto run = [&](int rank, const std::shared_ptr<SharedArena>& shared) {
    RunRankLoop(config, plan, rank, shared, leader);
  };
  EXPECT_THROW(RunRankThreads(std::vector{arena}, run), Error);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_LT(reports[0].done, reports[0].total);
}

TEST(RankLoop, EachGroupServesItsOwnRequests) {
  // First group 1 has work alone, then both groups have, then group 0 alone.
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

TEST(RankLoop, QueriesAreAnsweredOnceForAllGroups) {
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

// Both groups pause before the same step, and all outputs before the pause precede its answer.
TEST(RankLoop, GroupsPauseAndContinueTogether) {
  const EngineRequest first = Request(1, 1, 20, 12), second = Request(2, 0, 40, 30);
  for (const PauseAction action : {PauseAction::kNone, PauseAction::kRetract}) {
    int calls = 0, quiet = 0;
    size_t tokens = 0;
    const Heard heard = RunScript([&](const Heard& so_far) -> std::vector<ControlMessage> {
      size_t now = 0;
      for (const auto& [id, output] : so_far.outputs) now += output.new_tokens.size();
      if (++calls == 1) return {first, second};
      if (calls == 8)
        return {SetControls{.ticket = 6, .controls = {.paused = true}, .action = action}};
      if (so_far.controls.contains(6) && quiet < 5) {  // the ranks are idle now
        if (quiet++ > 0) {
          EXPECT_EQ(now, tokens);
        }
        tokens = now;
        return {GetStats{static_cast<uint64_t>(10 + quiet)}};
      }
      if (quiet == 5) {
        ++quiet;
        return {SetControls{.ticket = 7, .controls = {.step_delay_seconds = 0.001}}};
      }
      if (!so_far.Ended(1) || !so_far.Ended(2)) return {};
      return {Shutdown{}};
    });
    EXPECT_EQ(heard.controls.at(6), action == PauseAction::kRetract ? 2 : 0);
    EXPECT_EQ(heard.controls.at(7), 0);
    EXPECT_EQ(Total(heard.stats.at(11)).waiting, action == PauseAction::kRetract ? 2 : 0);
    EXPECT_EQ(heard.outputs.at(1).new_tokens, Alone(first));
    EXPECT_EQ(heard.outputs.at(2).new_tokens, Alone(second));
  }
}

TEST(RankLoop, AnAbortEndsTheRequestsOfAllGroups) {
  int calls = 0;
  const Heard heard = RunScript([&](const Heard& so_far) -> std::vector<ControlMessage> {
    if (++calls == 1) return {Request(1, 1, 20, 60), Request(2, 0, 40, 40)};
    if (calls == 8)
      return {
          SetControls{.ticket = 6, .controls = {.paused = true}, .action = PauseAction::kAbort}};
    if (!so_far.controls.contains(6)) return {};
    EXPECT_TRUE(so_far.Ended(1) && so_far.Ended(2));
    return {Shutdown{}};
  });
  EXPECT_EQ(heard.controls.at(6), 2);
  for (const uint64_t id : {1, 2}) EXPECT_EQ(heard.outputs.at(id).finish, FinishReason::kAbort);
}

// Rank 0 answers once, for any number of groups, while they work and while they are idle.
TEST(RankLoop, TheRecorderAnswersOnce) {
  int calls = 0;
  const Script script = [&](const Heard& so_far) -> std::vector<ControlMessage> {
    if (++calls == 1)
      return {Request(1, 1, 20, 6), RecordExperts{6, RecordAction::kStop}, GetExpertLoad{7}};
    if (calls == 2) return {RecordExperts{8, RecordAction::kStart}};
    if (!so_far.Ended(1)) return {};
    return {RecordExperts{9, RecordAction::kDump}, GetExpertLoad{10}, Shutdown{}};
  };
  const TemporaryDirectory directory;
  const Heard heard = RunScript(script, {.mode = "stat", .dir = directory.path()});
  EXPECT_FALSE(heard.records.at(6).changed);
  EXPECT_TRUE(heard.records.at(8).changed);
  EXPECT_EQ(heard.records.at(9).dump.error, "");
  EXPECT_TRUE(std::filesystem::exists(heard.records.at(9).dump.file));
  EXPECT_FALSE(heard.loads.at(7).load.recording);
  EXPECT_TRUE(heard.loads.at(10).load.recording);
  EXPECT_EQ(heard.loads.at(10).load.layers, 2);

  calls = 0;
  const Heard refused = RunScript(script);
  for (const uint64_t ticket : {6, 8, 9})
    EXPECT_THAT(refused.records.at(ticket).dump.error,
                ::testing::HasSubstr("--expert-distribution-recorder-mode"));
  EXPECT_THAT(refused.loads.at(10).error, ::testing::HasSubstr("counting is disabled"));
}

TEST(RankLoop, NothingMovesWithoutAManager) {
  const Heard heard = RunScript([&](const Heard&) -> std::vector<ControlMessage> {
    return {RebalanceExperts{6}, GetEplb{7}, Shutdown{}};
  });
  for (const uint64_t ticket : {6, 7})
    EXPECT_THAT(heard.eplb.at(ticket).refused, ::testing::HasSubstr("--enable-eplb"));
}

// Names of the complete events (phase "X") of a trace file.
std::vector<std::string> EventNames(const std::string& file) {
  std::ifstream in(file);
  std::vector<std::string> names;
  const nlohmann::json trace = nlohmann::json::parse(in);
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X") names.push_back(event["name"]);
  return names;
}

// Group 1 decodes throughout; ranks of group 0 run its steps with an empty batch.
TEST(RankLoop, AProfileHasAFileOfEveryRank) {
  const TemporaryDirectory directory;
  const std::filesystem::path& dir = directory.path();
  const profile::Options options{.dir = dir.string(), .name = "a"};
  int calls = 0;
  const Heard heard = RunScript(
      [&](const Heard& so_far) -> std::vector<ControlMessage> {
        if (++calls == 1) return {StopProfile{5}, StartProfile{6, options}, Request(1, 1, 20, 6)};
        if (calls == 2) return {StartProfile{7, options}};
        if (!so_far.Ended(1)) return {};
        return {StopProfile{8}, StopProfile{9}, Shutdown{}};
      },
      {}, /*profiles=*/true);
  const auto outcome = [&](uint64_t ticket) { return heard.profiles.at(ticket).outcome; };
  EXPECT_EQ(outcome(5), ProfileOutcome::kConflict);
  EXPECT_EQ(outcome(6), ProfileOutcome::kDone);
  EXPECT_EQ(outcome(7), ProfileOutcome::kConflict);
  EXPECT_EQ(outcome(8), ProfileOutcome::kDone);
  EXPECT_EQ(outcome(9), ProfileOutcome::kConflict);
  const profile::Result& result = heard.profiles.at(8).result;
  ASSERT_THAT(result.files, SizeIs(4));
  // The prompt takes two steps, in chunks of 16. The second one gives the first token.
  std::vector<std::string> want;
  for (int step = 0; step < 7; ++step)
    for (const char* name : {step < 2 ? "prefill step" : "decode step", "plan", "exchange counts",
                             "forward", "sample", "send results"})
      want.emplace_back(name);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(result.files[rank], (dir / fmt::format("a-TP-{}.trace.json", rank)).string());
    EXPECT_EQ(EventNames(result.files[rank]), want) << rank;
  }
  EXPECT_EQ(result.events, static_cast<int64_t>(4 * want.size()));
}

TEST(RankLoop, AProfileThatARankCannotWriteIsRefusedOnAllOfThem) {
  const TemporaryDirectory directory;
  const std::filesystem::path& dir = directory.path();
  // A folder with the name of rank 2's test file, so that the rank cannot write this file.
  std::filesystem::create_directories(dir / ".switchyard-profile-2");
  int calls = 0;
  const Script script = [&](const Heard& so_far) -> std::vector<ControlMessage> {
    if (++calls == 1)
      return {StartProfile{5, {.dir = dir.string(), .name = "a"}}, Request(1, 1, 20, 6)};
    if (!so_far.Ended(1)) return {};
    return {StopProfile{6}, Shutdown{}};
  };
  const Heard heard = RunScript(script, {}, /*profiles=*/true);
  EXPECT_EQ(heard.profiles.at(5).outcome, ProfileOutcome::kBadDirectory);
  EXPECT_THAT(heard.profiles.at(5).result.error, ::testing::StartsWith("rank 2: "));
  EXPECT_EQ(heard.profiles.at(6).outcome, ProfileOutcome::kConflict);
  EXPECT_EQ(heard.outputs.at(1).finish, FinishReason::kLength);

  calls = 0;
  EXPECT_EQ(RunScript(script).profiles.at(5).outcome, ProfileOutcome::kConflict);
}

TEST(RankLoop, TheLastMessagesOfEveryGroupAreSentBeforeTheLoopEnds) {
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
