// Controls of the front: what the ranks get, also after a restart.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <thread>

#include "server/front/test_restarted_front.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FrontControlsTest : public FrontRestartTest {
 protected:
  void Pause(PauseAction action = PauseAction::kNone) {
    front->ChangeControls(
        [](EngineControls* c) { c->paused = true; }, action,
        [this](bool done, const ControlsSet& set) { answers.push_back(done ? set.requests : -1); });
  }
  std::vector<SetControls> Sent() const {
    std::vector<SetControls> sets;
    for (const ControlMessage& message : ranks.sent)
      if (const auto* set = std::get_if<SetControls>(&message)) sets.push_back(*set);
    return sets;
  }

  std::vector<int64_t> answers;
};

TEST_F(FrontControlsTest, AChangeKeepsTheOtherValues) {
  front->ChangeControls([](EngineControls* c) { c->step_delay_seconds = 0.5; }, PauseAction::kNone,
                        [](bool, const ControlsSet&) {});
  Pause(PauseAction::kRetract);
  const std::vector<SetControls> sent = Sent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].controls, (EngineControls{.paused = true, .step_delay_seconds = 0.5}));
  EXPECT_EQ(sent[1].action, PauseAction::kRetract);
  EXPECT_EQ(front->controls(), sent[1].controls);
  front->OnMessage(ControlsSet{.ticket = sent[1].ticket, .requests = 3});
  EXPECT_THAT(answers, ElementsAre(3));
}

TEST_F(FrontControlsTest, NewRanksGetTheControlsBeforeTheRequests) {
  const uint64_t id = Submit(9);
  Steps(2);
  Pause();
  front->OnMessage(ControlsSet{.ticket = Sent().at(0).ticket});
  Restart(Killed());
  ASSERT_FALSE(ranks.sent.empty());
  const auto* set = std::get_if<SetControls>(&ranks.sent.front());
  ASSERT_NE(set, nullptr);
  EXPECT_TRUE(set->controls.paused);
  EXPECT_EQ(set->ticket, 0u);
  EXPECT_EQ(set->action, PauseAction::kNone);
  EXPECT_THAT(ranks.Requested(), ElementsAre(id));
}

TEST_F(FrontControlsTest, UnchangedControlsAreNotSent) {
  Submit(9);
  Steps(1);
  Restart(Killed());
  EXPECT_THAT(Sent(), IsEmpty());
}

// A suspect runs alone, and queries wait for its end. A pause and its end must not wait, because
// the suspect could then never end.
TEST_F(FrontControlsTest, APauseEndsAlsoWhileASuspectRunsAlone) {
  const uint64_t id = Submit(9);
  Steps(1);
  Restart(Crashed({{id}}));
  Pause();
  ASSERT_EQ(Sent().size(), 1u);
  EXPECT_TRUE(Sent()[0].controls.paused);
  front->ChangeControls([](EngineControls* c) { c->paused = false; }, PauseAction::kNone,
                        [](bool, const ControlsSet&) {});
  ASSERT_EQ(Sent().size(), 2u);
  EXPECT_FALSE(Sent()[1].controls.paused);
  EXPECT_THAT(answers, IsEmpty());
  RunOut();
  EXPECT_EQ(Sent().size(), 4u);  // then the queries, in their order
  EXPECT_FALSE(Sent()[3].controls.paused);
  ExpectWhole(id, 9);
}

TEST_F(FrontControlsTest, AnAbortEndsRequestsThatTheRanksDoNotHave) {
  const uint64_t id = Submit(9);
  front->Pause(Killed());
  Pause(PauseAction::kAbort);
  EXPECT_EQ(clients[id]->finish, FinishReason::kAbort);
  EXPECT_THAT(answers, IsEmpty());
  ranks.Restart();
  front->Resume();
  const std::vector<SetControls> sent = Sent();
  ASSERT_EQ(sent.size(), 2u);  // the present controls, then the query
  EXPECT_EQ(sent[1].action, PauseAction::kAbort);
  front->OnMessage(ControlsSet{.ticket = sent[1].ticket});
  EXPECT_THAT(answers, ElementsAre(1));
}

class TimeLimitsTest : public FrontControlsTest {
 protected:
  // Begins with both limits of 1 ms.
  void Begin() {
    ranks.Restart();
    clients.clear();
    constexpr std::chrono::milliseconds kLimit{1};
    front = std::make_unique<Front>(ranks, *tokenizer,
                                    Front::Limits{.vocab_size = 512,
                                                  .context_length = 64,
                                                  .cache_tokens = 1024,
                                                  .queue_timeout = kLimit,
                                                  .running_timeout = kLimit});
  }
  void Resume() {
    front->ChangeControls([](EngineControls* c) { c->paused = false; }, PauseAction::kNone,
                          [](bool, const ControlsSet&) {});
  }
  static void ExceedLimit() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }
  // Whether the request has ended because of a limit.
  bool IsOverdue(uint64_t id) {
    front->AbortOverdue();
    Steps(1);
    return clients[id]->finish == FinishReason::kError;
  }
};

TEST_F(TimeLimitsTest, DoNotRunDuringAPause) {
  for (const bool runs : {false, true}) {
    Begin();
    Pause();
    const uint64_t id = Submit(20);
    if (runs) Steps(1);  // a pass in flight
    for (int pauses = 0; pauses < 2; ++pauses) {
      ExceedLimit();
      front->AbortOverdue();
      EXPECT_EQ(clients[id]->finish, FinishReason::kNone);
      Pause();  // has no effect, because it is paused already
    }
    Resume();
    ExceedLimit();
    EXPECT_TRUE(IsOverdue(id));
    EXPECT_THAT(clients[id]->error,
                HasSubstr(runs ? "--request-timeout" : "--request-queue-timeout"));
  }
}

TEST_F(TimeLimitsTest, IncludeTheTimeBeforeAPause) {
  Begin();
  const uint64_t id = Submit(20);
  ExceedLimit();
  Pause();
  EXPECT_TRUE(IsOverdue(id));
}

TEST_F(FrontControlsTest, LostRanksAnswerTheQuery) {
  Pause();
  front->OnRanksLost("gone");
  EXPECT_THAT(answers, ElementsAre(-1));
}

}  // namespace
}  // namespace switchyard
