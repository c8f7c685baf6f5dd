// A supervisor with simulated ranks. A thread of the test reads and writes the ranks' end of the
// control socket.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host/control_socket.h"
#include "core/error.h"
#include "server/ranks/supervisor.h"

namespace switchyard {

constexpr auto kLong = std::chrono::seconds(30);

class FakeHost : public RankHost {
 public:
  using OnRetire = std::function<void(FakeHost& host, const std::vector<int>& ranks)>;
  // `joins`: result of WaitJoined. `ended`: if valid, the destructor waits for this future.
  FakeHost(const std::string& endpoint, OnExit on_exit, OnRetire on_retire,
           std::function<bool()> joins, std::shared_future<void> ended)
      : socket_(ControlSocket::Connect(endpoint)),
        on_exit_(std::move(on_exit)),
        on_retire_(std::move(on_retire)),
        joins_(std::move(joins)),
        ended_(std::move(ended)) {}
  ~FakeHost() override {
    if (late_.joinable()) late_.join();
    if (ended_.valid()) ended_.wait();
  }

  bool WaitJoined() override { return joins_(); }
  RankSilence LongestSilence() const override { return {}; }
  void ExpectEnd() override {}
  bool WaitEnded(std::chrono::milliseconds) override { return true; }
  void KillAll() override {}
  void Retire(const std::vector<int>& ranks, const std::string&) override {
    on_retire_(*this, ranks);
  }
  bool Kill(std::chrono::milliseconds) override { return can_be_killed; }
  Ending HowEnded() const override { return ending_; }
  std::vector<int> Absent() const override { return absent; }
  bool AbsentHaveLoaded() const override { return absent_have_loaded; }

  void Send(const EngineMessage& message) { socket_.Send(EncodeMessage(message)); }
  std::vector<ControlMessage> Receive() {
    const auto bytes = socket_.Receive(kLong);
    EXPECT_TRUE(bytes.has_value());
    return bytes ? DecodeControl(*bytes) : std::vector<ControlMessage>();
  }
  std::atomic<bool> can_be_killed{true};
  std::vector<int> absent;  // set before the host is used
  std::atomic<bool> absent_have_loaded{false};
  void Fails(Ending ending) { ending_ = std::move(ending); }  // a rank failed, not reported yet
  // Call it last: the host may then be destroyed.
  void End(const std::string& why, Ending ending) {
    ending_ = std::move(ending);
    on_exit_(why, /*cause=*/true);
  }
  // Like End. `last` arrives `delay` after the end is reported.
  void EndBefore(const EngineMessage& last, std::chrono::milliseconds delay, const std::string& why,
                 Ending ending) {
    late_ = std::thread([this, last, delay] {
      std::this_thread::sleep_for(delay);
      Send(last);
    });
    End(why, std::move(ending));
  }

 private:
  ControlSocket socket_;
  const OnExit on_exit_;
  const OnRetire on_retire_;
  const std::function<bool()> joins_;
  const std::shared_future<void> ended_;
  Ending ending_;
  std::thread late_;  // sends the message of EndBefore
};

inline const RankHost::Ending kKilled = {.by_signal = true, .batch = std::vector<uint64_t>()};
inline const RankHost::Ending kFailed = {.failed = {1}, .batch = std::vector<uint64_t>()};
// Rank 0 has ended with an error, which the leader sends.
inline const RankHost::Ending kLoadError = {
    .failed = {0}, .batch = std::vector<uint64_t>(), .exits = {{.rank = 0, .code = 2}}};

class SupervisorTest : public ::testing::Test, public RankLink {
 protected:
  explicit SupervisorTest(int first_groups = 1) : groups(first_groups) {}
  void Send(const std::vector<ControlMessage>& messages) override { supervisor->Send(messages); }

  // A layout whose ranks are FakeHosts. With `fails`, they cannot be started.
  class FakeLayout : public RankLayout {
   public:
    FakeLayout(SupervisorTest& test, int groups) : test_(test), groups_(groups) {}
    std::unique_ptr<EngineRanks> Start(EngineRanks::Events events, std::function<bool()> give_up,
                                       bool may_be_absent) override {
      if (fails) throw Error(ErrorKind::kResource, "no memory");
      const auto join = [this, give_up = std::move(give_up)] {
        while (!joins && !give_up()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return joins.load();
      };
      return std::make_unique<EngineRanks>(
          [this, join, may_be_absent](const std::string& endpoint, RankHost::OnExit on_exit) {
            auto host = std::make_unique<FakeHost>(
                endpoint, std::move(on_exit),
                [this](FakeHost& host, const std::vector<int>& ranks) {
                  const std::lock_guard lock(test_.mutex);
                  test_.retired.push_back(ranks);
                  if (test_.failure) host.Fails(*test_.failure);
                },
                join, ended);
            const std::lock_guard lock(test_.mutex);
            if (may_be_absent) host->absent = test_.absent;
            test_.hosts.push_back(host.get());
            test_.changed.notify_all();
            return host;
          },
          nullptr, std::move(events));
    }
    void Release() override { ++releases; }
    int groups() const override { return groups_; }
    bool fails = false;
    std::atomic<bool> joins{true};   // result of WaitJoined
    std::shared_future<void> ended;  // if valid, the ranks end when this future is ready
    std::atomic<int> releases{0};

   private:
    SupervisorTest& test_;
    const int groups_;
  };

  void Start(Supervisor::Options options) {
    supervisor =
        std::make_unique<Supervisor>(options, front, std::make_shared<FakeLayout>(*this, groups),
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
    const bool ready = future.wait_for(kLong) == std::future_status::ready;
    EXPECT_TRUE(ready);
    return ready ? future.get() : std::string();
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

  const int groups;  // attention groups of the first layout
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<FakeHost*> hosts;             // hosts of all epochs, ended ones included
  std::vector<std::vector<int>> retired;    // ranks of planned restarts
  std::optional<RankHost::Ending> failure;  // how a rank fails during the next planned restart
  std::vector<int> absent;  // ranks that the next epoch after the end of a rank runs without
  std::vector<int32_t> tokens;
  std::promise<std::string> lost;
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
  Front front{*this,
              *tokenizer,
              {.vocab_size = 512, .context_length = 64, .cache_tokens = 1024},
              DpController(groups, LoadBalanceMethod::kRoundRobin)};
  std::unique_ptr<Supervisor> supervisor;  // destroyed first
};

}  // namespace switchyard
