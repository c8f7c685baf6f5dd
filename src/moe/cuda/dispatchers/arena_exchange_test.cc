// A GPU and ranks on CPUs exchange rows through their arena. Ranks are threads of one process.
#include "moe/cuda/dispatchers/arena_exchange.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/cuda/testing.h"
#include "moe/dispatchers/test_arena.h"

namespace switchyard::cuda {
namespace {

using ::testing::HasSubstr;

// Rank 0 of an ArenaCase. The outputs of its own experts are computed in advance.
class GpuSource {
 public:
  GpuSource(const ArenaCase& c, RankComm& comm,
            std::chrono::milliseconds timeout = std::chrono::seconds(30))
      : c_(c),
        link_((UseDevice(0), *comm.memory), timeout),
        exchange_(ConfigOf(c), c.Arena(), c.Experts(), link_),
        x_(c.max_tokens * c.hidden * 4),
        ids_(c.max_tokens * c.k * 4),
        weights_(c.max_tokens * c.k * 4),
        outputs_(c.max_tokens * c.k * c.hidden * 4),
        position_(c.max_tokens * c.k * 4),
        y_(c.max_tokens * c.hidden * 4) {}

  void Upload(const SomeTokens& some) {
    const ExpertMap experts = c_.Experts();
    std::vector<int32_t> position;
    for (size_t i = 0; i < some.topk.ids.size(); ++i) {
      const int32_t id = some.topk.ids[i];
      position.push_back(id >= 0 && experts.Owner(id) == 0 ? static_cast<int32_t>(i) : -1);
    }
    Copy(x_, some.x);
    Copy(ids_, some.topk.ids);
    Copy(weights_, some.topk.weights);
    Copy(position_, position);
    Copy(outputs_, OutputsOf(c_, some));
  }
  void Enqueue(int64_t tokens) {
    exchange_.BeginDispatch(0,
                            {.x = x_.data(),
                             .dtype = DType::kF32,
                             .ids = ids_.as<int32_t>(),
                             .weights = weights_.as<float>(),
                             .tokens = tokens},
                            stream_.get());
    rows_ = exchange_.EndDispatch(0, stream_.get());
    exchange_.BeginCombine(0, outputs_.data(), position_.as<int32_t>(), stream_.get());
    exchange_.EndCombine(0, y_.as<float>(), stream_.get());
  }
  void Wait() {
    Event done(cudaEventDisableTiming);
    done.Record(stream_.get());
    link_.Wait(done.get());
    stream_.Synchronize();
    link_.CheckTimeouts();
  }
  std::vector<float> Sums(int64_t tokens) {
    Wait();
    return ToHost<float>(y_, tokens * c_.hidden);
  }
  std::vector<float> Run(const SomeTokens& some) {
    Upload(some);
    Enqueue(some.topk.tokens);
    std::vector<float> y = Sums(some.topk.tokens);
    ExpectOwnRows(some);
    return y;
  }
  // Replays a captured batch, and does not wait between the replays.
  void Replay(int64_t tokens, int times) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    Check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "recording");
    Enqueue(tokens);
    Check(cudaStreamEndCapture(stream_.get(), &graph), "recording");
    Check(cudaGraphInstantiate(&replay, graph, 0), "recording");
    for (int i = 0; i < times; ++i) Check(cudaGraphLaunch(replay, stream_.get()), "replay");
    Wait();
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  }

 private:
  static ExchangeConfig ConfigOf(const ArenaCase& c) {
    const ExchangeShape shape = c.Exchange();
    return {.ranks = c.ranks,
            .hidden = c.hidden,
            .top_k = c.k,
            .max_tokens = c.Arena().capacity,
            .dispatched = shape.row_format,
            .combined = shape.output_dtype};
  }
  template <typename T>
  static void Copy(const DeviceMemory& to, const std::vector<T>& from) {
    ASSERT_LE(from.size() * sizeof(T), to.bytes());
    if (!from.empty()) CopyToDevice(to.data(), from.data(), from.size() * sizeof(T), "copy");
  }
  template <typename T>
  static std::vector<T> Read(const T* from, int64_t count) {
    std::vector<T> values(count);
    Check(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }
  void ExpectOwnRows(const SomeTokens& some) const {
    const int64_t tokens = some.topk.tokens;
    EXPECT_EQ(Read(rows_.counts, 1)[0], tokens);
    if (tokens == 0) return;
    const ExpertMap experts = c_.Experts();
    const std::vector<int32_t> ids = Read(rows_.ids, tokens * c_.k);
    const RowFormat format = c_.Exchange().row_format;
    const std::vector<std::byte> rows = Read(rows_.rows, tokens * rows_.row_stride);
    std::vector<std::byte> want(format.Bytes(c_.hidden));
    for (int64_t t = 0; t < tokens; ++t) {
      bool own = false;
      for (int j = 0; j < c_.k; ++j) {
        const int32_t local = experts.LocalIdOn(0, some.topk.ids[t * c_.k + j]);
        EXPECT_EQ(ids[t * c_.k + j], local) << t << ' ' << j;
        own |= local >= 0;
      }
      if (!own) continue;
      StoreRow(format, some.x.data() + t * c_.hidden, c_.hidden, want.data());
      const auto row = rows.begin() + t * rows_.row_stride;
      EXPECT_TRUE(std::equal(want.begin(), want.end(), row)) << t;
    }
  }

  const ArenaCase& c_;
  HostLink link_;
  ArenaExchange exchange_;
  Stream stream_;
  DeviceMemory x_, ids_, weights_, outputs_, position_, y_;
  DispatchedRows rows_;
};

class ArenaExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

void Expect(const ArenaCase& c, const std::vector<SomeTokens>& batches) {
  RunArenaRanks(c, std::ssize(batches), [&](RankComm& comm) {
    GpuSource source(c, comm);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_TRUE(kernels::SameBits(source.Run(batches[i]), SumsOf(c, batches[i]))) << i;
  });
}

TEST_F(ArenaExchangeTest, GivesWhatTheCpuGivesInAllFormats) {
  const std::vector<RowFormat> formats = {
      {DType::kF32}, {DType::kBF16}, {.dtype = DType::kBF16, .fp8 = true}};
  for (const RowFormat& format : formats)
    for (const int ranks : {2, 3})
      for (const int64_t hidden : {16, 160, 1040}) {
        const ArenaCase c = {.ranks = ranks,
                             .slots = ranks == 2 ? std::vector{3, 7} : std::vector{2, 5, 6},
                             .hidden = hidden,
                             .format = format};
        SCOPED_TRACE(fmt::format("{} ranks, hidden {}, {}{}", ranks, hidden, Name(format.dtype),
                                 format.fp8 ? " fp8" : ""));
        Expect(c, {c.Tokens(40, 1), c.Tokens(1, 2), c.Tokens(0, 3), c.Tokens(17, 4),
                   c.TokensOf(0, 5, 5), c.TokensOf(ranks - 1, 33, 6), c.Tokens(32, 7)});
      }
}

TEST_F(ArenaExchangeTest, ManyTokensAndManySlots) {
  const ArenaCase c = {
      .slots = {12, 40}, .k = 16, .hidden = 256, .max_tokens = 700, .format = {DType::kBF16}};
  Expect(c, {c.Tokens(700, 1), c.Tokens(257, 2), c.Tokens(256, 3), c.Tokens(3, 4)});
}

TEST_F(ArenaExchangeTest, RoundsFollowEachOtherWithoutWaitsOfTheHost) {
  const ArenaCase c = {.slots = {2, 2}, .k = 2, .hidden = 64, .max_tokens = 8};
  constexpr int kRounds = 1000;
  const SomeTokens first = c.Tokens(8, 1), second = c.Tokens(5, 2);
  RunArenaRanks(c, 2 * kRounds, [&](RankComm& comm) {
    GpuSource source(c, comm);
    for (const SomeTokens* some : {&first, &second}) {
      source.Upload(*some);
      source.Replay(some->topk.tokens, kRounds);
      EXPECT_TRUE(kernels::SameBits(source.Sums(some->topk.tokens), SumsOf(c, *some)));
    }
  });
}

TEST_F(ArenaExchangeTest, AnAbortEndsTheWaitOfTheGpu) {
  const ArenaCase c;
  const auto run = [&] {
    RunArenaRanks(c, 1, [&](RankComm& comm) {
      GpuSource source(c, comm);
      source.Run(c.Tokens(3, 1));  // the other rank serves one batch only
      std::thread aborts([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm.memory->Abort("rank 1 has died");
      });
      source.Upload(c.Tokens(4, 2));
      source.Enqueue(4);
      try {
        source.Wait();
      } catch (...) {
        aborts.join();
        throw;
      }
      aborts.join();
    });
  };
  EXPECT_THAT(ErrorOf(run, ErrorKind::kPeer), HasSubstr("rank 1 has died"));
}

TEST_F(ArenaExchangeTest, TheWaitOfTheGpuHasADeadline) {
  const ArenaCase c;
  const auto run = [&] {
    RunArenaRanks(c, 0, [&](RankComm& comm) {
      GpuSource source(c, comm, std::chrono::milliseconds(100));
      source.Upload(c.Tokens(4, 2));
      source.Enqueue(4);
      source.Wait();
    });
  };
  EXPECT_THAT(ErrorOf(run, ErrorKind::kTimeout),
              HasSubstr("rank 0 waited 0.1 s on its GPU for the experts of rank 1"));
}

}  // namespace
}  // namespace switchyard::cuda
