#include "engine/thread_engine.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <mutex>

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

// Fake models on `world` ranks, with their batches compared.
ThreadEngine::RankBody FakeRanks(int world, std::atomic<int>* whole = nullptr, int32_t poison = -1,
                                 int poisoned_rank = -1) {
  return [=](int rank, std::shared_ptr<SharedArena> arena, const RankLoopIo& io) {
    const auto comm =
        RankComm::Create(std::move(arena), {.tp = world, .ep = 1}, rank, {.timeout = 20s});
    FakeForward model({.num_pages = 24, .page_size = 4});
    if (rank == poisoned_rank) model.poison = poison;
    CheckedForward checked(model, *comm->tp, 4);
    RankEngine engine(SmallEngine(), checked);
    if (rank == 0) io.send(RankReady{.total_pages = 24});
    ServeRequests(engine, *comm->tp, io);
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
      if (news.finish == FinishReason::kNone) return;
      end_.set_value(news);
    };
  }
  RequestOutput Wait() { return end_.get_future().get(); }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::vector<int32_t> tokens_;
  std::promise<RequestOutput> end_;
};

TEST(ThreadEngine, ManyClientsGetTheSameTokensOnOneAndThreeRanks) {
  std::vector<std::vector<int32_t>> want;
  for (const int world : {1, 3}) {
    std::atomic<int> whole = 0;
    {
      ThreadEngine engine(world, kArenaBytes, FakeRanks(world, &whole), {});
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
      const EngineStats stats = engine.Stats();
      EXPECT_EQ(stats.running + stats.waiting, 0);
      EXPECT_EQ(stats.free_pages + stats.cached_pages, 24);
    }
    EXPECT_EQ(whole, world);
  }
}

TEST(ThreadEngine, AbortAndDestructionReachTheirCallbacks) {
  Collector aborted, left;
  {
    ThreadEngine engine(2, kArenaBytes, FakeRanks(2), {});
    // Never ends by itself within the context, unless the abort comes late.
    const uint64_t id = engine.Submit(Request(1, 5, 80), aborted.Callback());
    engine.Abort(id);
    engine.Abort(id + 100);
    const RequestOutput end = aborted.Wait();
    EXPECT_THAT(end.finish, testing::AnyOf(FinishReason::kAbort, FinishReason::kLength));
    engine.Submit(Request(2, 5, 80), left.Callback());
  }
  EXPECT_THAT(left.Wait().finish, testing::AnyOf(FinishReason::kAbort, FinishReason::kLength));
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
    ServeRequests(engine, *comm->tp, io);
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
  // Rank 1 alone sees logits that are not finite and drops the request.
  ThreadEngine engine(2, kArenaBytes, FakeRanks(2, nullptr, 3, 1), {});
  Collector poisoned, other;
  engine.Submit(Request(30, 5, 80), other.Callback());
  engine.Submit(Request(0, 8, 80), poisoned.Callback());
  EXPECT_THAT(other.Wait().error, HasSubstr("different batches"));
  poisoned.Wait();
}

}  // namespace
}  // namespace switchyard
