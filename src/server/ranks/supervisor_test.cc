// Restarts. The ranks are simulated: a test thread reads and writes their end of the control
// socket.
#include "server/ranks/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "core/error.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kLong = 30s;

class FakeHost : public RankHost {
 public:
  FakeHost(const std::string& endpoint, OnExit on_exit)
      : socket_(ControlSocket::Connect(endpoint)), on_exit_(std::move(on_exit)) {}

  bool WaitJoined() override { return true; }
  RankSilence LongestSilence() const override { return {}; }
  void ExpectEnd() override {}
  bool WaitEnded(std::chrono::milliseconds) override { return true; }
  void KillAll() override {}
  bool Kill(std::chrono::milliseconds) override { return can_be_killed; }
  Ending HowEnded() const override { return ending_; }

  void Send(const EngineMessage& message) { socket_.Send(EncodeMessage(message)); }
  std::vector<ControlMessage> Receive() {
    const auto bytes = socket_.Receive(kLong);
    EXPECT_TRUE(bytes.has_value());
    return bytes ? DecodeControl(*bytes) : std::vector<ControlMessage>();
  }
  bool can_be_killed = true;
  // Call it last: the host may then be destroyed.
  void End(const std::string& why, Ending ending) {
    ending_ = std::move(ending);
    on_exit_(why, /*cause=*/true);
  }

 private:
  ControlSocket socket_;
  const OnExit on_exit_;
  Ending ending_;
};

const RankHost::Ending kKilled = {.by_signal = true, .batch = std::vector<uint64_t>()};
const RankHost::Ending kFailed = {.failed = {1}, .batch = std::vector<uint64_t>()};

class SupervisorTest : public testing::Test, public RankLink {
 protected:
  void Send(const std::vector<ControlMessage>& messages) override { supervisor->Send(messages); }

  void Start(Supervisor::Options options) {
    supervisor = std::make_unique<Supervisor>(
        options, front,
        [this](EngineRanks::Events events, const std::function<bool()>&) {
          return std::make_unique<EngineRanks>(
              [this](const std::string& endpoint, RankHost::OnExit on_exit) {
                auto host = std::make_unique<FakeHost>(endpoint, std::move(on_exit));
                const std::lock_guard lock(mutex);
                hosts.push_back(host.get());
                changed.notify_all();
                return host;
              },
              nullptr, std::move(events));
        },
        [this](const std::string& why) {
          front.OnRanksLost(why);
          lost.set_value(why);
        });
    Host(1).Send(RankReady{});
    const std::atomic<bool> never{false};
    EXPECT_TRUE(supervisor->WaitReady([](const LoadProgress&) {}, never).has_value());
  }
  // The ranks of an epoch, once they have started.
  FakeHost& Host(size_t epoch) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, kLong, [&] { return hosts.size() >= epoch; }));
    return *hosts.at(epoch - 1);
  }
  std::string Lost() {
    auto future = lost.get_future();
    EXPECT_EQ(future.wait_for(kLong), std::future_status::ready);
    return future.get();
  }
  uint64_t Submit(int32_t max_new_tokens) {
    GenerationSpec spec;
    spec.input_ids = {5, 6, 7};
    spec.sampling.max_new_tokens = max_new_tokens;
    spec.stream_interval = 1;
    return front.Submit(std::move(spec), [this](const GenerationEvent& e) {
      const std::lock_guard lock(mutex);
      tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
      changed.notify_all();
    });
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, kLong, [&] { return tokens.size() >= count; }));
  }
  static StepOutputs Token(uint64_t id, int32_t token) {
    return {{{.id = id, .new_tokens = {token}}}};
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<FakeHost*> hosts;  // hosts of all epochs, ended ones included
  std::vector<int32_t> tokens;
  std::promise<std::string> lost;
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
  Front front{*this, *tokenizer, {.vocab_size = 512, .context_length = 64, .cache_tokens = 1024}};
  std::unique_ptr<Supervisor> supervisor;  // destroyed first
};

TEST_F(SupervisorTest, NewRanksContinueTheRequests) {
  Start({.restarts = true});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  Host(1).Receive();
  Host(1).Send(Token(id, 11));
  Host(1).Send(Token(id, 12));
  WaitForTokens(2);
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).Send(RankReady{});
  const auto messages = Host(2).Receive();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(std::get<EngineRequest>(messages[0]).output_ids, ElementsAre(11, 12));
  Host(2).Send(Token(id, 13));
  WaitForTokens(3);
  EXPECT_THAT(tokens, ElementsAre(11, 12, 13));
  EXPECT_EQ(front.history().epoch, 2);
  EXPECT_TRUE(supervisor->Shutdown(10s));
}

TEST_F(SupervisorTest, RanksThatAreKilledWhileTheyLoadAreRestarted) {
  Start({.restarts = true});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).End("rank 0 was killed", kKilled);
  Host(3).Send(RankReady{});
  EXPECT_EQ(std::get<EngineRequest>(Host(3).Receive().at(0)).id, id);
  EXPECT_EQ(front.history().deaths, 2);
  EXPECT_EQ(front.history().epoch, 2);
}

// It may have been short of memory, for example. --max-rank-deaths limits the number of attempts.
TEST_F(SupervisorTest, RanksThatEndByThemselvesWhileTheyLoadAreRestarted) {
  Start({.restarts = true, .deaths = {.count = 3, .window = 60s}});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).End("rank 1 ended with exit code 0", kFailed);
  Host(3).Send(RankReady{});
  while (front.history().epoch < 2) std::this_thread::yield();
  EXPECT_EQ(front.history().deaths, 2);
  Host(3).End("rank 1 was killed", kKilled);
  Host(4).End("rank 1 ended with exit code 1", kFailed);
  EXPECT_THAT(Lost(), AllOf(HasSubstr("exit code 0"), HasSubstr("exit code 1")));
}

TEST_F(SupervisorTest, AnErrorOfRanksThatLoadIsFinal) {
  Start({.restarts = true});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2).Send(EngineFailure{"no such tensor", ErrorKind::kInvalid});
  Host(2).End("rank 0 ended with exit code 2: no such tensor", kFailed);
  EXPECT_THAT(Lost(), HasSubstr("no such tensor"));
  EXPECT_TRUE(front.ranks_lost());
}

TEST_F(SupervisorTest, TooManyDeathsAreFinal) {
  Start({.restarts = true, .deaths = {.count = 2, .window = 60s}});
  supervisor->Watch();
  for (const size_t epoch : {1, 2, 3}) {
    if (epoch > 1) Host(epoch).Send(RankReady{});
    while (front.history().epoch < static_cast<int64_t>(epoch)) std::this_thread::yield();
    Host(epoch).End("death " + std::to_string(epoch), kKilled);
  }
  EXPECT_THAT(Lost(), AllOf(HasSubstr("death 1; death 2; death 3"), HasSubstr("2/60")));
}

TEST_F(SupervisorTest, WithoutRestartsADeathIsFinal) {
  Start({.restarts = false});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_EQ(Lost(), "rank 1 was killed");
}

TEST_F(SupervisorTest, BeforeTheServerIsReadyADeathIsFinal) {
  Start({.restarts = true});
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_EQ(Lost(), "rank 1 was killed");
}

TEST_F(SupervisorTest, ShutdownDoesNotWaitForRanksThatLoad) {
  Start({.restarts = true});
  supervisor->Watch();
  Host(1).End("rank 1 was killed", kKilled);
  Host(2);
  EXPECT_TRUE(supervisor->Shutdown(10s));
}

TEST_F(SupervisorTest, ARankThatCannotBeKilledEndsTheServer) {
  Start({.restarts = true, .reap_timeout = 7s});
  supervisor->Watch();
  const uint64_t id = Submit(9);
  Host(1).can_be_killed = false;
  Host(1).End("rank 1 was killed", kKilled);
  EXPECT_THAT(Lost(), HasSubstr("has not ended after 7 s"));
  EXPECT_TRUE(front.ranks_lost());
  EXPECT_EQ(id, 1u);
}

}  // namespace
}  // namespace switchyard
