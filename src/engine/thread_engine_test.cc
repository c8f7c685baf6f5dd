#include "engine/thread_engine.h"

#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>

#include "core/error.h"
#include "engine/fake_forward.h"
#include "engine/rank_loop.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr size_t kArenaBytes = size_t{32} << 20;

RankEngine::Options SmallEngine() {
  return {.page_size = 4,
          .num_pages = 24,
          .max_running_requests = 8,
          .chunked_prefill_size = 16,
          .context_length = 90};
}

// Fake models on `world` ranks in `dp` attention groups, with comparison of their batches.
ThreadEngine::RankBody FakeRanks(int world, int dp = 1, std::atomic<int>* whole = nullptr,
                                 int32_t poison = -1, int poisoned_rank = -1) {
  return [=](int rank, std::shared_ptr<SharedArena> arena, const RankLoopIo& io) {
    const auto comm = RankComm::Create(std::move(arena), {.tp = world, .ep = 1, .dp = dp}, rank,
                                       {.timeout = 20s});
    FakeForward model({.num_pages = 24, .page_size = 4});
    if (rank == poisoned_rank) model.poison = poison;
    CheckedForward checked(model, *comm->attn_tp, 4);
    RankEngine::Options options = SmallEngine();
    options.group = comm->mesh.dp_rank();
    RankEngine engine(options, checked);
    if (rank == 0) io.send(RankReady{.total_pages = 24});
    ServeRequests(engine, *comm, io);
    if (whole && engine.PoolIsWhole()) ++*whole;
  };
}

EngineRequest Request(int32_t first, int32_t length, int32_t max_new) {
  EngineRequest request;
  for (int32_t i = 0; i < length; ++i) request.input_ids.push_back((first + i) % 61);
  request.sampling.max_new_tokens = max_new;
  request.sampling.seed = first;
  return request;
}

class Collector {
 public:
  Engine::Callback Callback() {
    return [this](const RequestOutput& news) {
      const std::lock_guard lock(mutex_);
      tokens_.insert(tokens_.end(), news.new_tokens.begin(), news.new_tokens.end());
      heard_ = true;
      some_news_.notify_all();
      if (news.finish == FinishReason::kNone) return;
      end_.set_value(news);
    };
  }
  RequestOutput Wait() {
    RequestOutput end = end_.get_future().get();
    const std::lock_guard lock(
        mutex_);  // the callback has returned; the collector may be destroyed
    return end;
  }
  void WaitForNews() {
    std::unique_lock lock(mutex_);
    some_news_.wait(lock, [this] { return heard_; });
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_news_;
  bool heard_ = false;
  std::vector<int32_t> tokens_;
  std::promise<RequestOutput> end_;
};

TEST(ThreadEngine, ManyClientsGetTheSameTokensOnEveryLayout) {
  std::vector<std::vector<int32_t>> want;
  const std::pair<int, int> layouts[] = {{1, 1}, {3, 1}, {2, 2}, {4, 2}, {4, 4}};
  for (const auto& [world, dp] : layouts) {
    std::atomic<int> whole = 0;
    {
      ThreadEngine engine(world, kArenaBytes, FakeRanks(world, dp, &whole), {},
                          DpController(dp, LoadBalanceMethod::kRoundRobin));
      std::vector<Collector> collectors(30);
      std::vector<std::thread> clients;
      for (int c = 0; c < 3; ++c)
        clients.emplace_back([&, c] {
          for (int i = c; i < 30; i += 3)
            engine.Submit(Request(i, 5 + i, 20), collectors[i].Callback());
        });
      for (std::thread& client : clients) client.join();
      std::vector<std::vector<int32_t>> got;
      for (Collector& collector : collectors) {
        EXPECT_EQ(collector.Wait().finish, FinishReason::kLength);
        got.push_back(collector.tokens());
      }
      if (want.empty()) want = got;
      EXPECT_EQ(got, want);
      EXPECT_THAT(engine.Stats(), ::testing::SizeIs(dp));
      for (const EngineStats& group : engine.Stats()) {
        EXPECT_EQ(group.running + group.waiting, 0);
        EXPECT_GT(group.decode_tokens, 0);
        EXPECT_EQ(group.free_pages + group.cached_pages, 24);
      }
      EXPECT_TRUE(engine.FlushCache());
      EXPECT_EQ(Total(engine.Stats()).free_pages, 24 * dp);
    }
    EXPECT_EQ(whole, world);
  }
}

// Clients arrive and abort at random, with or without a pinned group; every request that completes
// gets the same tokens as when it runs alone.
TEST(ThreadEngine, ArrivalsAbortsAndFlushesChangeNoTokens) {
  constexpr int kRequests = 60;
  std::vector<std::vector<int32_t>> alone;
  for (const int dp : {1, 2, 4}) {
    ThreadEngine engine(4, kArenaBytes, FakeRanks(4, dp), {},
                        DpController(dp, LoadBalanceMethod::kTotalTokens));
    std::mt19937 random(dp);
    std::vector<Collector> collectors(kRequests);
    std::vector<bool> aborted(kRequests);
    for (int i = 0; i < kRequests; ++i) {
      EngineRequest request = Request(i % 20, 3 + i % 37, 1 + i % 23);
      if (dp > 1 && i % 5 == 0) request.group = i % dp;
      const uint64_t id = engine.Submit(std::move(request), collectors[i].Callback());
      if (dp > 1 && random() % 4 == 0) {
        engine.Abort(id);
        aborted[i] = true;
      }
      if (random() % 8 == 0) engine.FlushCache();
      if (random() % 6 == 0) collectors[random() % (i + 1)].WaitForNews();
    }
    for (int i = 0; i < kRequests; ++i) {
      const RequestOutput end = collectors[i].Wait();
      if (dp == 1) {
        alone.push_back(collectors[i].tokens());
      } else if (end.finish != FinishReason::kAbort) {
        EXPECT_EQ(collectors[i].tokens(), alone[i]) << "request " << i << " with dp " << dp;
      } else {
        EXPECT_TRUE(aborted[i]);
      }
    }
  }
}

// A repeated prompt goes to the attention group that has it in its cache.
TEST(ThreadEngine, RepeatedPromptsReuseTheCache) {
  for (const int dp : {2, 4}) {
    ThreadEngine engine(4, kArenaBytes, FakeRanks(4, dp), {},
                        DpController(dp, LoadBalanceMethod::kCacheAware));
    const auto run = [&](int32_t first) {
      Collector collector;
      engine.Submit(Request(first, 20, 2), collector.Callback());
      return collector.Wait().cached_tokens;
    };
    for (int32_t first = 0; first < 8; ++first) EXPECT_EQ(run(7 * first), 0);
    for (int32_t first = 0; first < 8; ++first) EXPECT_GE(run(7 * first), 16) << first;
    for (const EngineStats& group : engine.Stats()) EXPECT_GT(group.decode_tokens, 0);
    EXPECT_TRUE(engine.FlushCache());
    EXPECT_EQ(run(0), 0);
  }
}

TEST(ThreadEngine, AnUnknownGroupIsRefused) {
  ThreadEngine engine(2, kArenaBytes, FakeRanks(2, 2), {},
                      DpController(2, LoadBalanceMethod::kRoundRobin));
  EngineRequest request = Request(1, 5, 3);
  request.group = 2;
  EXPECT_THROW(engine.Submit(request, [](const RequestOutput&) {}), Error);
}

TEST(ThreadEngine, AbortAndDestructionReachTheirCallbacks) {
  Collector aborted, left;
  {
    ThreadEngine engine(2, kArenaBytes, FakeRanks(2, 2), {},
                        DpController(2, LoadBalanceMethod::kRoundRobin));
    // This request would run until the context is full. If the abort comes late, it ends by its
    // length.
    const uint64_t id = engine.Submit(Request(1, 5, 80), aborted.Callback());
    engine.Abort(id);
    engine.Abort(id + 100);
    const RequestOutput end = aborted.Wait();
    EXPECT_THAT(end.finish, ::testing::AnyOf(FinishReason::kAbort, FinishReason::kLength));
    engine.Submit(Request(2, 5, 80), left.Callback());
  }
  EXPECT_THAT(left.Wait().finish, ::testing::AnyOf(FinishReason::kAbort, FinishReason::kLength));
}

TEST(ThreadEngine, CallbacksMaySubmit) {
  ThreadEngine engine(1, kArenaBytes, FakeRanks(1), {});
  Collector second;
  engine.Submit(Request(1, 5, 1),
                [&](const RequestOutput&) { engine.Submit(Request(2, 5, 3), second.Callback()); });
  EXPECT_EQ(second.Wait().finish, FinishReason::kLength);
}

TEST(ThreadEngine, ARankThatFailsEndsOpenRequestsAndRefusesNewOnes) {
  const auto body = [](int rank, std::shared_ptr<SharedArena> arena, const RankLoopIo& io) {
    const auto comm =
        RankComm::Create(std::move(arena), {.tp = 2, .ep = 1}, rank, {.timeout = 20s});
    if (rank == 0) io.send(RankReady{});
    class Failing : public ForwardFunction {
     public:
      std::span<const float> Forward(const ForwardBatch&) override {
        throw Resource("no memory left");
      }
      int64_t vocab_size() const override { return 61; }
    } failing;
    FakeForward model({.num_pages = 24, .page_size = 4});
    CheckedForward checked(model, *comm->tp, 4);
    RankEngine engine(SmallEngine(), rank == 1 ? static_cast<ForwardFunction&>(failing) : checked);
    ServeRequests(engine, *comm, io);
  };
  ThreadEngine engine(2, kArenaBytes, body, {});
  Collector collector;
  engine.Submit(Request(1, 5, 80), collector.Callback());
  const RequestOutput end = collector.Wait();
  EXPECT_EQ(end.finish, FinishReason::kError);
  EXPECT_THAT(end.error, HasSubstr("no memory left"));
  EXPECT_THROW(engine.Submit(Request(1, 5, 80), collector.Callback()), Error);
  EXPECT_THROW(engine.Stats(), Error);
}

TEST(ThreadEngine, AFailureWhileLoadingIsThrownToTheCaller) {
  const auto body = [](int, std::shared_ptr<SharedArena>, const RankLoopIo&) {
    throw NotFound("model.safetensors is missing");
  };
  try {
    ThreadEngine(2, kArenaBytes, body, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  }
}

TEST(RankLoop, RanksWhoseSchedulersDifferAreFound) {
  // Only on rank 1 the logits are not finite, so only rank 1 drops the request.
  ThreadEngine engine(2, kArenaBytes, FakeRanks(2, 1, nullptr, 3, 1), {});
  Collector poisoned, other;
  engine.Submit(Request(30, 5, 80), other.Callback());
  engine.Submit(Request(0, 8, 80), poisoned.Callback());
  EXPECT_THAT(other.Wait().error, HasSubstr("different batches"));
  poisoned.Wait();
}

}  // namespace
}  // namespace switchyard
