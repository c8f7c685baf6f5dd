// Requests that outlive their ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <thread>

#include "core/error.h"
#include "server/front/front.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

int32_t TokenOf(uint64_t id, size_t n) {
  return static_cast<int32_t>(20 + (id * 37 + n * 5) % 400);
}

// Simulated ranks. Each step gives every open request its next token.
class FakeRanks : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    sent.insert(sent.end(), messages.begin(), messages.end());
  }
  // Replaces the ranks with new ones that have no requests. Messages to the old ranks are lost.
  void Restart() {
    sent.clear();
    taken_ = 0;
    open_.clear();
  }
  StepOutputs Step() {
    StepOutputs outputs;
    for (; taken_ < sent.size(); ++taken_) {
      if (const auto* request = std::get_if<EngineRequest>(&sent[taken_])) {
        EXPECT_TRUE(open_.emplace(request->id, *request).second) << "sent twice: " << request->id;
      } else if (const auto* abort = std::get_if<AbortRequest>(&sent[taken_])) {
        if (open_.erase(abort->id) > 0)
          outputs.outputs.push_back({.id = abort->id, .finish = FinishReason::kAbort});
      }
    }
    for (auto it = open_.begin(); it != open_.end();) {
      EngineRequest& request = it->second;
      RequestOutput& output = outputs.outputs.emplace_back();
      output.id = request.id;
      if (request.output_ids.empty()) request.cached_tokens = 3;
      output.cached_tokens = request.cached_tokens;
      output.new_tokens = {TokenOf(request.id, request.output_ids.size())};
      request.output_ids.push_back(output.new_tokens[0]);
      const bool ends = std::ssize(request.output_ids) >= request.sampling.max_new_tokens;
      if (ends) output.finish = FinishReason::kLength;
      it = ends ? open_.erase(it) : std::next(it);
    }
    return outputs;
  }
  std::vector<uint64_t> Batch() const {
    std::vector<uint64_t> ids;
    for (const auto& [id, request] : open_) ids.push_back(id);
    return ids;
  }
  std::vector<uint64_t> Requested() const {
    std::vector<uint64_t> ids;
    for (const ControlMessage& message : sent)
      if (const auto* request = std::get_if<EngineRequest>(&message)) ids.push_back(request->id);
    return ids;
  }

  std::vector<ControlMessage> sent;

 private:
  size_t taken_ = 0;
  std::map<uint64_t, EngineRequest> open_;
};

class FrontRestartTest : public testing::Test {
 protected:
  struct Client {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::kNone;
    std::string error;
    int32_t cached = 0;
  };

  uint64_t Submit(int32_t max_new_tokens) {
    GenerationSpec spec;
    spec.input_ids = {5, 6, 7};
    spec.sampling.max_new_tokens = max_new_tokens;
    spec.stream_interval = 1;
    auto client = std::make_shared<Client>();
    const uint64_t id = front->Submit(std::move(spec), [client](const GenerationEvent& e) {
      EXPECT_EQ(client->finish, FinishReason::kNone);  // nothing follows the end
      client->tokens.insert(client->tokens.end(), e.tokens.begin(), e.tokens.end());
      client->finish = e.finish;
      client->error = e.error;
      client->cached = e.cached_tokens;
    });
    clients[id] = client;
    return id;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) front->OnMessage(ranks.Step());
  }
  void RunOut() {
    for (int i = 0; front->open() > 0; ++i) {
      ASSERT_LT(i, 1000);
      Steps(1);
    }
  }
  RanksEnd Killed() const { return {.why = "rank 1 was killed", .time = Clock::now()}; }
  RanksEnd Crashed(std::optional<std::vector<uint64_t>> batch) const {
    return {.why = "rank 1 was killed by signal 11 (SIGSEGV)",
            .time = Clock::now(),
            .by_itself = true,
            .batch = std::move(batch)};
  }
  void Restart(const RanksEnd& end) {
    front->Pause(end);
    ranks.Restart();
    front->Resume();
  }
  void ExpectWhole(uint64_t id, size_t count) {
    std::vector<int32_t> want;
    for (size_t n = 0; n < count; ++n) want.push_back(TokenOf(id, n));
    EXPECT_EQ(clients[id]->tokens, want) << "request " << id;
    EXPECT_EQ(clients[id]->finish, FinishReason::kLength) << clients[id]->error;
    EXPECT_EQ(clients[id]->cached, 3);
  }
  void Begin() {
    ranks.Restart();
    clients.clear();
    front = std::make_unique<Front>(
        ranks, *tokenizer,
        Front::Limits{.vocab_size = 512, .context_length = 64, .cache_tokens = 1024});
  }
  void SetUp() override { Begin(); }

  using Clock = std::chrono::steady_clock;
  FakeRanks ranks;
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
  std::unique_ptr<Front> front;
  std::map<uint64_t, std::shared_ptr<Client>> clients;
};

TEST_F(FrontRestartTest, EachTokenArrivesOnceWhereverTheRanksEnd) {
  for (int first = 0; first < 12; ++first) {
    for (int second = 0; second < 6; ++second) {
      Begin();
      const uint64_t a = Submit(9);
      const uint64_t b = Submit(4);
      Steps(first);
      const uint64_t c = Submit(5);  // the ranks may not have read it
      front->Pause(Killed());
      ranks.Restart();
      const uint64_t d = Submit(3);  // waits
      EXPECT_THAT(ranks.sent, IsEmpty());
      front->Resume();
      EXPECT_TRUE(std::ranges::is_sorted(ranks.Requested()));
      Steps(second);
      Restart(Killed());
      RunOut();
      ExpectWhole(a, 9);
      ExpectWhole(b, 4);
      ExpectWhole(c, 5);
      ExpectWhole(d, 3);
    }
  }
}

// The new ranks sample tokens again that the old ranks sent but the front did not read.
TEST_F(FrontRestartTest, UnreadTokensAreComputedAgain) {
  const uint64_t id = Submit(6);
  Steps(2);
  ranks.Step();  // lost
  Restart(Killed());
  const auto& request = std::get<EngineRequest>(ranks.sent.at(0));
  EXPECT_THAT(request.output_ids, ElementsAre(TokenOf(id, 0), TokenOf(id, 1)));
  EXPECT_EQ(request.input_ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(request.cached_tokens, 3);
  EXPECT_EQ(request.sampling.max_new_tokens, 6);
  RunOut();
  ExpectWhole(id, 6);
}

TEST_F(FrontRestartTest, AnAbortDuringAPauseFollowsItsRequest) {
  const uint64_t a = Submit(20), b = Submit(20);
  Steps(1);
  front->Pause(Killed());
  ranks.Restart();
  front->Abort({a});
  const uint64_t c = Submit(2);
  front->Abort({c});
  EXPECT_THAT(ranks.sent, IsEmpty());
  front->Resume();
  Steps(1);
  EXPECT_EQ(clients[a]->finish, FinishReason::kAbort);
  EXPECT_EQ(clients[c]->finish, FinishReason::kAbort);
  EXPECT_EQ(clients[b]->finish, FinishReason::kNone);
  EXPECT_THAT(clients[a]->tokens, SizeIs(1));
}

// The abort was sent to ranks that ended before they read it.
TEST_F(FrontRestartTest, ALostAbortIsSentAgain) {
  const uint64_t id = Submit(20);
  Steps(1);
  front->Abort({id});
  Restart(Killed());
  Steps(1);
  EXPECT_EQ(clients[id]->finish, FinishReason::kAbort);
}

TEST_F(FrontRestartTest, QuestionsAreAskedAgain) {
  int answers = 0;
  const auto ask = [&] { front->FlushCache([&](bool done) { answers += done ? 1 : 0; }); };
  ask();
  front->Pause(Killed());
  ask();
  ranks.Restart();
  front->Resume();
  ASSERT_THAT(ranks.sent, SizeIs(2));
  for (const ControlMessage& message : ranks.sent)
    front->OnMessage(FlushResult{.ticket = std::get<FlushCache>(message).ticket, .done = true});
  EXPECT_EQ(answers, 2);
  Restart(Killed());
  EXPECT_THAT(ranks.sent, IsEmpty());
}

// A request without a seed gets one from its id, so a query must not change the ids of later
// requests.
TEST_F(FrontRestartTest, QuestionsTakeNoIdsOfRequests) {
  EXPECT_EQ(Submit(1), 1u);
  front->FlushCache([](bool) {});
  EXPECT_EQ(Submit(1), 2u);
}

TEST_F(FrontRestartTest, GrammarsAreDefinedAgain) {
  auto grammar = std::make_shared<ReadyGrammar>();
  grammar->id = 4;
  grammar->bytes = "grammar";
  grammar->vocabulary = std::make_shared<const std::string>("vocabulary");
  GenerationSpec spec;
  spec.input_ids = {5};
  spec.grammar = grammar;
  front->Submit(spec, [](const GenerationEvent&) {});
  Restart(Killed());
  ASSERT_THAT(ranks.sent, SizeIs(3));
  EXPECT_EQ(std::get<GrammarTokens>(ranks.sent[0]).bytes, "vocabulary");
  EXPECT_EQ(std::get<DefineGrammar>(ranks.sent[1]).id, 4u);
  EXPECT_EQ(std::get<EngineRequest>(ranks.sent[2]).grammar, 4u);
}

TEST_F(FrontRestartTest, AKillMakesNoRequestSuspect) {
  Submit(9);
  Submit(9);
  Steps(1);
  Restart({.why = "killed", .time = Clock::now(), .by_itself = false, .batch = {{1, 2}}});
  EXPECT_THAT(ranks.Requested(), ElementsAre(1, 2));
}

TEST_F(FrontRestartTest, SuspectsRunAloneOneAfterAnother) {
  for (int i = 0; i < 4; ++i) Submit(9);
  Steps(2);
  Restart(Crashed({{2, 3, 77}}));
  EXPECT_THAT(ranks.Requested(), ElementsAre(2));
  EXPECT_EQ(std::get<EngineRequest>(ranks.sent[0]).sampling.max_new_tokens, 4);
  const uint64_t late = Submit(3);
  Steps(1);
  EXPECT_THAT(ranks.Requested(), ElementsAre(2));
  EXPECT_GT(front->history().held_for, 0);
  Steps(1);
  EXPECT_THAT(ranks.Requested(), ElementsAre(2, 3));
  Steps(2);
  EXPECT_THAT(ranks.Requested(), ElementsAre(2, 3, 1, 2, 3, 4, late));
  EXPECT_EQ(front->history().held_for, 0);
  RunOut();
  for (uint64_t id = 1; id <= 4; ++id) ExpectWhole(id, 9);
  ExpectWhole(late, 3);
}

TEST_F(FrontRestartTest, WithAnUnknownBatchAllRequestsOfTheRanksAreSuspect) {
  Submit(9);
  Submit(9);
  Steps(1);
  Restart(Crashed(std::nullopt));
  EXPECT_THAT(ranks.Requested(), ElementsAre(1));
  Steps(2);
  EXPECT_THAT(ranks.Requested(), ElementsAre(1, 2));
  RunOut();
  ExpectWhole(1, 9);
  ExpectWhole(2, 9);
}

TEST_F(FrontRestartTest, ARequestThatEndsItsRanksAloneEndsWithTheError) {
  for (int i = 0; i < 3; ++i) Submit(9);
  Steps(1);
  Restart(Crashed({{1, 2, 3}}));
  Steps(2);  // 1 is cleared
  EXPECT_EQ(ranks.Batch(), std::vector<uint64_t>());
  Restart(Killed());  // does not count
  EXPECT_EQ(clients[2]->finish, FinishReason::kNone);
  Steps(1);
  EXPECT_EQ(ranks.Batch(), std::vector<uint64_t>{2});
  Restart(Crashed({{2}}));
  EXPECT_EQ(clients[2]->finish, FinishReason::kError);
  EXPECT_THAT(clients[2]->error, HasSubstr("SIGSEGV"));
  RunOut();
  ExpectWhole(1, 9);
  ExpectWhole(3, 9);
  EXPECT_THAT(clients[2]->tokens, SizeIs(2));
}

TEST_F(FrontRestartTest, TheLastTokensOfASuspectEndItAsUsual) {
  const uint64_t id = Submit(3);
  Steps(1);
  Restart(Crashed({{id}}));
  RunOut();
  ExpectWhole(id, 3);
}

TEST_F(FrontRestartTest, AnAbortedSuspectMakesRoomForTheNext) {
  const uint64_t a = Submit(9), b = Submit(9);
  Steps(1);
  Restart(Crashed({{a, b}}));
  front->Abort({a});
  Steps(1);
  EXPECT_EQ(clients[a]->finish, FinishReason::kAbort);
  RunOut();
  ExpectWhole(b, 9);
}

TEST_F(FrontRestartTest, RanksThatAreLostDuringAPauseEndAllRequests) {
  const uint64_t id = Submit(9);
  Steps(1);
  front->Pause(Crashed({{id}}));
  front->OnRanksLost("no more restarts");
  EXPECT_EQ(clients[id]->finish, FinishReason::kError);
  EXPECT_EQ(clients[id]->error, "no more restarts");
  EXPECT_THROW(Submit(1), Error);
  EXPECT_TRUE(front->WaitUntilIdle(std::chrono::milliseconds(0)));
}

TEST_F(FrontRestartTest, HistoryCountsEpochsDeathsAndPauses) {
  EXPECT_EQ(front->history().epoch, 1);
  front->Pause({.why = "killed", .time = Clock::now() - std::chrono::seconds(2)});
  EXPECT_GE(front->history().paused_for, 2);
  EXPECT_EQ(front->history().epoch, 1);
  front->Pause(Killed());  // while new ranks load
  EXPECT_GE(front->history().paused_for, 2);
  front->Resume();
  const RankHistory history = front->history();
  EXPECT_EQ(history.epoch, 2);
  EXPECT_EQ(history.deaths, 2);
  EXPECT_EQ(history.paused_for, 0);
  EXPECT_GE(history.pause_seconds, 2);
}

TEST_F(FrontRestartTest, AnAbortDuringAPauseEndsTheRequestAtOnce) {
  const uint64_t a = Submit(20), b = Submit(20);
  Steps(1);
  front->Pause(Killed());
  front->Abort({a});
  EXPECT_EQ(clients[a]->finish, FinishReason::kAbort);
  EXPECT_THAT(clients[a]->tokens, SizeIs(1));
  EXPECT_EQ(front->open(), 1u);
  ranks.Restart();
  front->Resume();
  EXPECT_THAT(ranks.Requested(), ElementsAre(b));
  RunOut();
  ExpectWhole(b, 20);
}

TEST_F(FrontRestartTest, APauseEndsRequestsThatWereAborted) {
  const uint64_t id = Submit(20);
  Steps(1);
  front->Abort({id});
  EXPECT_EQ(clients[id]->finish, FinishReason::kNone);
  front->BeginPause(Clock::now());
  EXPECT_EQ(clients[id]->finish, FinishReason::kAbort);
  EXPECT_TRUE(front->WaitUntilIdle(std::chrono::milliseconds(0)));
}

TEST_F(FrontRestartTest, ATimeoutDuringAPauseEndsTheRequestAtOnce) {
  ranks.Restart();
  front =
      std::make_unique<Front>(ranks, *tokenizer,
                              Front::Limits{.vocab_size = 512,
                                            .context_length = 64,
                                            .cache_tokens = 1024,
                                            .queue_timeout = std::chrono::duration<double>(1e-6)});
  const uint64_t id = Submit(20);
  front->Pause(Killed());
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  front->AbortOverdue();
  EXPECT_EQ(clients[id]->finish, FinishReason::kError);
  EXPECT_THAT(clients[id]->error, HasSubstr("--request-queue-timeout"));
}

TEST_F(FrontRestartTest, AnAbortedRequestThatWaitsForSuspectsEndsAtOnce) {
  const uint64_t a = Submit(9), b = Submit(9), c = Submit(9);
  Steps(1);
  Restart(Crashed({{a, b}}));
  front->Abort({b, c});
  EXPECT_EQ(clients[b]->finish, FinishReason::kAbort);
  EXPECT_EQ(clients[c]->finish, FinishReason::kAbort);
  RunOut();
  ExpectWhole(a, 9);
}

TEST_F(FrontRestartTest, AQuestionIsAskedTwiceAtMost) {
  std::vector<std::string> errors;
  const auto dump = [&] {
    front->RecordExperts(RecordAction::kDump,
                         [&](const RecordResult& r) { errors.push_back(r.dump.error); });
  };
  const uint64_t id = Submit(20);
  Steps(1);
  dump();
  Restart(Crashed({{id}}));
  EXPECT_THAT(ranks.sent, SizeIs(1));  // the suspect alone, without the query
  Steps(2);
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_THAT(ranks.sent, SizeIs(3));  // the query and the request
  Restart(Crashed({{id}}));
  EXPECT_THAT(errors, ElementsAre(HasSubstr("SIGSEGV")));
  dump();  // new queries wait for the suspect
  Steps(2);
  EXPECT_THAT(errors, SizeIs(1));
  EXPECT_EQ(clients[id]->finish, FinishReason::kNone);
  RunOut();
  ExpectWhole(id, 20);
}

TEST_F(FrontRestartTest, StatisticsAreAnsweredDuringAPause) {
  std::vector<std::vector<EngineStats>> answers;
  const auto ask = [&] {
    front->Stats([&](const std::vector<EngineStats>& groups) { answers.push_back(groups); });
  };
  ask();
  const uint64_t ticket = std::get<GetStats>(ranks.sent.at(0)).ticket;
  front->OnMessage(StatsReport{.ticket = ticket, .groups = {{.running = 3, .total_pages = 50}}});
  ask();
  Submit(9);
  front->Pause(Killed());
  ask();
  ASSERT_THAT(answers, SizeIs(3));
  for (const auto& groups : {answers[1], answers[2]}) {
    ASSERT_THAT(groups, SizeIs(1));
    EXPECT_EQ(groups[0].running, 0);
    EXPECT_EQ(groups[0].waiting, 1);
    EXPECT_EQ(groups[0].total_pages, 50);
  }
  std::string refused;
  front->GetEplb([&](const EplbReport& report) { refused = report.refused; }, WhenHeld::kFail);
  EXPECT_THAT(refused, HasSubstr("restarting"));
}

// The kernel may kill the ranks because of the memory that a request needs.
TEST_F(FrontRestartTest, KillsInARowWithoutATokenMakeTheirBatchSuspect) {
  const uint64_t a = Submit(9), b = Submit(9);
  const auto kill = [&](std::vector<uint64_t> batch) {
    const bool fruitless =
        front->Pause({.why = "rank 0 was killed", .time = Clock::now(), .batch = std::move(batch)});
    ranks.Restart();
    front->Resume();
    return fruitless;
  };
  Steps(1);
  EXPECT_FALSE(kill({a, b}));
  for (int i = 1; i < 5; ++i) EXPECT_TRUE(kill({a, b}));
  EXPECT_THAT(ranks.Requested(), ElementsAre(a, b));
  EXPECT_TRUE(kill({a, b}));
  for (int i = 6; i <= 8; ++i) {
    EXPECT_THAT(ranks.Requested(), ElementsAre(a));
    EXPECT_EQ(clients[a]->finish, FinishReason::kNone);
    EXPECT_TRUE(kill({a}));
  }
  EXPECT_THAT(clients[a]->error, HasSubstr("rank 0 was killed"));
  RunOut();
  ExpectWhole(b, 9);
}

TEST_F(FrontRestartTest, KillsOfRanksWithoutRequestsAreNotFruitless) {
  for (int i = 0; i < 9; ++i) {
    EXPECT_FALSE(front->Pause({.why = "killed", .time = Clock::now(), .batch = {{}}}));
    ranks.Restart();
    front->Resume();
  }
}

}  // namespace
}  // namespace switchyard
