// Requests that continue after a restart of the ranks.
#include <gmock/gmock.h>

#include <thread>

#include "core/error.h"
#include "server/front/test_restarted_front.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST_F(FrontRestartTest, EachTokenArrivesOnceWhereverTheRanksEnd) {
  for (int first = 0; first < 12; ++first) {
    for (int second = 0; second < 6; ++second) {
      Begin();
      const uint64_t a = Submit(9);
      const uint64_t b = Submit(4);
      Steps(first);
      const uint64_t c = Submit(5);  // sent, but perhaps not read by the ranks
      front->Pause(Killed());
      ranks.Restart();
      const uint64_t d = Submit(3);  // submitted during the pause, so it waits
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
  ranks.Step();  // this output is lost
  Restart(Killed());
  const auto& request = std::get<EngineRequest>(ranks.sent.at(0));
  EXPECT_THAT(request.output_ids, ElementsAre(TokenOf(id, 0), TokenOf(id, 1)));
  EXPECT_EQ(request.input_ids, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(request.cached_tokens, 3);
  EXPECT_EQ(request.sampling.max_new_tokens, 6);
  RunOut();
  ExpectWhole(id, 6);
}

TEST_F(FrontRestartTest, HeldRequestsAreSentAfterTheOthersHaveEnded) {
  const uint64_t a = Submit(3);
  Steps(1);
  front->HoldNew();
  const uint64_t b = Submit(2), c = Submit(2);
  EXPECT_FALSE(front->Drained());
  Restart(Killed());  // sends only the request that is not held back
  EXPECT_THAT(ranks.Requested(), ElementsAre(a));
  front->Abort({c});
  Steps(2);
  ExpectWhole(a, 3);
  EXPECT_EQ(clients[c]->finish, FinishReason::kAbort);
  EXPECT_TRUE(front->Drained());
  front->EndHold();
  RunOut();
  ExpectWhole(b, 2);
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

// The first abort is lost: it was sent to ranks that ended before they read it.
TEST_F(FrontRestartTest, ALostAbortIsSentAgain) {
  const uint64_t id = Submit(20);
  Steps(1);
  front->Abort({id});
  Restart(Killed());
  Steps(1);
  EXPECT_EQ(clients[id]->finish, FinishReason::kAbort);
}

TEST_F(FrontRestartTest, QueriesAreSentAgain) {
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

// A request without a seed gets a seed from its id. So a query must not take an id, which would
// change the ids of later requests.
TEST_F(FrontRestartTest, QueriesUseNoIdsOfRequests) {
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
  front->Pause(Killed());  // the new ranks are killed while they load
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

TEST_F(FrontRestartTest, AQueryIsSentTwiceAtMost) {
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

class FrontChangeTest : public FrontRestartTest {
 protected:
  void BeginWithGroups(int groups) {
    ranks.Restart();
    front = std::make_unique<Front>(
        ranks, *tokenizer,
        Front::Limits{.vocab_size = 512, .context_length = 64, .cache_tokens = 1024},
        DpController(groups, LoadBalanceMethod::kRoundRobin));
  }
  void ChangeTo(int groups) {
    front->PauseForChange(Clock::now(), groups);
    ranks.Restart();
    front->Resume();
  }
  std::vector<int32_t> GroupsSent() const {
    std::vector<int32_t> groups;
    for (const ControlMessage& message : ranks.sent)
      if (const auto* request = std::get_if<EngineRequest>(&message))
        groups.push_back(request->group.value_or(-1));
    return groups;
  }
};

TEST_F(FrontChangeTest, RequestsContinueInOtherGroups) {
  BeginWithGroups(2);
  for (int i = 0; i < 3; ++i) Submit(9);
  EXPECT_THAT(GroupsSent(), ElementsAre(0, 1, 0));
  Steps(2);
  ChangeTo(3);
  EXPECT_THAT(GroupsSent(), ElementsAre(0, 1, 2));
  EXPECT_THAT(front->open_by_group(), ElementsAre(1, 1, 1));
  Steps(3);
  ChangeTo(1);
  EXPECT_THAT(GroupsSent(), ElementsAre(0, 0, 0));
  RunOut();
  for (const auto& [id, client] : clients) ExpectWhole(id, 9);
  EXPECT_THAT(front->open_by_group(), ElementsAre(0));
  EXPECT_EQ(front->history().changes, 2);
  EXPECT_EQ(front->history().deaths, 0);
  EXPECT_EQ(front->history().epoch, 3);
}

// While group 1 is absent, its requests run in the other groups. They stay there when it is back.
TEST_F(FrontChangeTest, RequestsOfAnAbsentGroupMove) {
  BeginWithGroups(3);
  for (int i = 0; i < 6; ++i) Submit(9);
  EXPECT_THAT(GroupsSent(), ElementsAre(0, 1, 2, 0, 1, 2));
  Steps(2);
  front->Pause({.why = "rank 1 was killed", .time = Clock::now()});
  ranks.Restart();
  front->SetAbsentGroups(std::vector<int>{1});
  front->Resume();
  EXPECT_EQ(front->history().absent, 1);
  EXPECT_THAT(front->history().absent_for, ElementsAre(Pair(1, Ge(0.0))));
  EXPECT_THAT(GroupsSent(), ElementsAre(0, 0, 2, 0, 2, 2));
  EXPECT_THAT(front->open_by_group(), ElementsAre(3, 0, 3));

  std::vector<EngineStats> stats;
  front->Stats([&](const std::vector<EngineStats>& groups) { stats = groups; });
  const uint64_t ticket = std::get<GetStats>(ranks.sent.back()).ticket;
  front->OnMessage(StatsReport{.ticket = ticket, .groups = {{.running = 3}, {.running = 4}}});
  ASSERT_THAT(stats, SizeIs(3));
  EXPECT_EQ(stats[0].running, 3);
  EXPECT_EQ(stats[1].running, 0);
  EXPECT_EQ(stats[2].running, 4);

  Steps(2);
  front->PauseForChange(Clock::now(), 3);
  ranks.Restart();
  front->SetAbsentGroups({});
  front->Resume();
  EXPECT_THAT(GroupsSent(), ElementsAre(0, 0, 2, 0, 2, 2));
  EXPECT_EQ(front->history().absent, 0);
  EXPECT_TRUE(front->history().absent_for.empty());
  RunOut();
  for (const auto& [id, client] : clients) ExpectWhole(id, 9);
}

TEST_F(FrontChangeTest, APinnedRequestMovesOnlyIfItsGroupIsRemoved) {
  BeginWithGroups(4);
  GenerationSpec spec;
  spec.input_ids = {5, 6};
  spec.sampling.max_new_tokens = 9;
  spec.group = 3;
  front->Submit(spec, [](const GenerationEvent&) {});
  ChangeTo(4);
  EXPECT_THAT(GroupsSent(), ElementsAre(3));
  ChangeTo(2);
  EXPECT_THAT(GroupsSent(), ElementsAre(1));
  EXPECT_THROW(front->Submit(spec, [](const GenerationEvent&) {}), Error);
  RunOut();
}

TEST_F(FrontChangeTest, AQueryOutlivesAnyNumberOfChanges) {
  int answers = 0;
  front->FlushCache([&](bool done) { answers += done ? 1 : 100; });
  for (int i = 0; i < 5; ++i) ChangeTo(1);
  EXPECT_EQ(answers, 0);
  const uint64_t ticket = std::get<FlushCache>(ranks.sent.at(0)).ticket;
  front->OnMessage(FlushResult{.ticket = ticket, .done = true});
  EXPECT_EQ(answers, 1);
}

TEST_F(FrontChangeTest, RanksHaveProgressedOnceTheySendAnOutput) {
  EXPECT_TRUE(front->Progressed());  // no request is open
  Submit(9);
  EXPECT_FALSE(front->Progressed());
  Steps(1);
  EXPECT_TRUE(front->Progressed());
  ChangeTo(1);
  EXPECT_FALSE(front->Progressed());
}

}  // namespace
}  // namespace switchyard
