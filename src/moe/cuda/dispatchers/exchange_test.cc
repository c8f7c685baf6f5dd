#include "moe/cuda/dispatchers/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "moe/cuda/dispatchers/exchange_layout.h"
#include "moe/cuda/dispatchers/test_exchange_ranks.h"

namespace switchyard::cuda {
namespace {

// Number of blocks of the test's grids. It is small, because the kernels of all ranks that share a
// GPU must run at the same time.
constexpr int kBlocks = 8;

constexpr RowFormat kFormats[] = {
    {DType::kF32}, {DType::kBF16}, {.dtype = DType::kBF16, .fp8 = true}};

class CudaExchange : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  }
};

ExchangeConfig RandomConfig(kernels::Random& random) {
  ExchangeConfig c = {.ranks = random.Pick({1, 2, 2, 3, 4, 8}),
                      .hidden = 16 * random.Pick({4, 8, 16, 40, 72, 180, 264, 448}),
                      .top_k = random.Pick({1, 2, 6, 8, 16}),
                      .max_tokens = random.Pick({1, 3, 32, 33, 100}),
                      .dispatched = kFormats[random.Below(3)],
                      .combined = random.Pick({DType::kF32, DType::kBF16}),
                      .sum_by_rank = random.Below(2) == 0,
                      .low_latency = random.Below(2) == 0,
                      .in_flight = 1,
                      .blocks = random.Pick({1, 3, kBlocks})};
  if (c.hidden > 4000) c.max_tokens = std::min<int64_t>(c.max_tokens, 33);
  return c;
}

std::string Describe(const ExchangeConfig& c) {
  return fmt::format("{} ranks, hidden {}, top {}, {} tokens, {}{}, {}, by {}, {}, {} blocks",
                     c.ranks, c.hidden, c.top_k, c.max_tokens, Name(c.dispatched.dtype),
                     c.dispatched.fp8 ? " fp8" : "", Name(c.combined),
                     c.sum_by_rank ? "rank" : "slot", c.low_latency ? "low latency" : "normal",
                     c.blocks);
}

// The exchanges over peer memory and over NCCL read the tokens from the fields that SetTokens
// fills.
TEST(ExchangeTokens, AreGivenToTheBatchWhole) {
  float x, weights, addend, gate;
  int32_t ids;
  const RowExchange::Tokens tokens = {.x = &x,
                                      .dtype = DType::kBF16,
                                      .ids = &ids,
                                      .weights = &weights,
                                      .tokens = 7,
                                      .addend = {.x = &addend, .gate = &gate}};
  ExchangeBatch batch = {};
  EXPECT_THROW(SetTokens(batch, tokens), Error);  // no room for seven tokens
  batch.max_tokens = 7;
  SetTokens(batch, tokens);
  EXPECT_EQ(batch.x, &x);
  EXPECT_TRUE(batch.x_is_bf16);
  EXPECT_EQ(batch.ids, &ids);
  EXPECT_EQ(batch.weights, &weights);
  EXPECT_EQ(batch.tokens, 7);
  EXPECT_EQ(batch.addend.x, &addend);
  EXPECT_EQ(batch.addend.gate, &gate);
  EXPECT_THROW(SetTokens(batch, {.dtype = DType::kF16}), Error);
}

// A few batches in sequence through every kind of exchange.
TEST_F(CudaExchange, GivesWhatTheCpuGives) {
  kernels::Random random(11);
  for (int i = 0; i < 24; ++i) {
    const ExchangeConfig config = RandomConfig(random);
    SCOPED_TRACE(Describe(config));
    const ExpertMap experts(config.ranks * 3 + static_cast<int>(random.Below(20)), config.ranks,
                            random.Below(2) == 0);
    TestExchangeRanks ranks(config, experts);
    for (uint32_t batch = 0; batch < 3; ++batch) {
      const TestTraffic traffic({.config = config,
                                 .dtype = random.Pick({DType::kF32, DType::kBF16}),
                                 .seed = static_cast<uint32_t>(i) * 10 + batch},
                                experts);
      ranks.Upload(0, traffic);
      ranks.Run(0, traffic);
      ranks.Synchronize();
      ranks.CheckAll(0, traffic);
      if (HasFatalFailure()) return;
    }
  }
}

// Batches whose outputs are sent in parts alternate with batches whose outputs are sent in one
// part.
TEST_F(CudaExchange, PartsOfTheOutputsGiveWhatTheCpuGives) {
  kernels::Random random(12);
  for (int i = 0; i < 24; ++i) {
    const ExchangeConfig config = RandomConfig(random);
    SCOPED_TRACE(Describe(config));
    const ExpertMap experts(config.ranks * 3 + static_cast<int>(random.Below(20)), config.ranks,
                            false);
    TestExchangeRanks ranks(config, experts);
    const auto positions = static_cast<int32_t>(config.ranks * config.max_tokens * config.top_k);
    for (uint32_t batch = 0; batch < 4; ++batch) {
      const TestTraffic traffic({.config = config, .seed = static_cast<uint32_t>(i) * 10 + batch},
                                experts);
      std::vector<int32_t> bounds = {0};
      for (int64_t part = random.Below(6); part > 0; --part)
        bounds.push_back(static_cast<int32_t>(random.Below(positions + 1)));
      bounds.push_back(positions);
      std::ranges::sort(bounds);
      ranks.Upload(0, traffic);
      const auto all = [&](const auto& call) {
        for (int r = 0; r < config.ranks; ++r) call(r);
      };
      all([&](int r) { ranks.SetBounds(r, bounds); });
      all([&](int r) { ranks.BeginDispatch(r, 0, traffic); });
      all([&](int r) { ranks.EndDispatch(r, 0); });
      all([&](int r) {
        if (batch == 2) return ranks.BeginCombine(r, 0);
        ranks.BeginCombineInParts(r, 0, bounds);
      });
      all([&](int r) { ranks.EndCombine(r, 0); });
      ranks.Synchronize();
      ranks.CheckAll(0, traffic);
      if (HasFatalFailure()) return;
    }
  }
}

// Non-finite, tiny and huge values are rounded as on the CPU. Only NaN codes may differ in their
// sign.
TEST_F(CudaExchange, RoundsWhatIsNotFiniteAsTheCpuDoes) {
  constexpr int64_t kGroups = 64;
  const ExpertMap experts(1, 1, false);
  for (const RowFormat format : kFormats) {
    const ExchangeConfig config = {.hidden = 128 * kGroups,
                                   .top_k = 1,
                                   .max_tokens = 1,
                                   .dispatched = format,
                                   .in_flight = 1,
                                   .blocks = 1};
    TestTraffic traffic({.config = config, .tokens = 1}, experts);
    traffic.ranks[0].ids = {0};
    std::vector<float>& x = traffic.ranks[0].x;
    x = kernels::Random(3).Normal(config.hidden);
    for (int64_t g = 0; g < kGroups; ++g) {
      const float factor = std::ldexp(1.0f, static_cast<int>(g) * 4 - 128);
      for (int64_t i = 0; i < 128; ++i) x[g * 128 + i] *= factor;
      if (g % 4 == 1) x[g * 128 + 7] = INFINITY;
      if (g % 4 == 2) x[g * 128 + 9] = NAN;
    }
    TestExchangeRanks ranks(config, experts);
    ranks.Upload(0, traffic);
    ranks.BeginDispatch(0, 0, traffic);
    ranks.EndDispatch(0, 0);
    ranks.Synchronize();
    std::vector<std::byte> got = ranks.Row(0, 0, 0), want(got.size());
    StoreRow(format, x.data(), config.hidden, want.data());
    for (int64_t i = 0; i < config.hidden && format.fp8; ++i) {
      for (std::byte* code : {&got[i], &want[i]})
        if ((*code & std::byte{0x7f}) == std::byte{0x7f}) *code = std::byte{0x7f};
    }
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(got[i], want[i]) << "byte " << i << " of " << Name(format.dtype)
                                 << (format.fp8 ? " fp8" : "");
  }
}

ExchangeConfig SmallConfig(int ranks) {
  return {.ranks = ranks,
          .hidden = 1152,
          .top_k = 6,
          .max_tokens = 40,
          .dispatched = kFormats[2],
          .combined = DType::kBF16,
          .blocks = kBlocks};
}

// Repeatedly, two batches begin before one of them ends.
TEST_F(CudaExchange, KeepsBatchesInFlightApart) {
  for (const bool low_latency : {false, true}) {
    ExchangeConfig config = SmallConfig(3);
    config.low_latency = low_latency;
    const ExpertMap experts(20, 3, false);
    TestExchangeRanks ranks(config, experts);
    const auto all = [&](const auto& call) {
      for (int r = 0; r < config.ranks; ++r) call(r);
    };
    for (uint32_t round = 0; round < 4; ++round) {
      const TestTraffic first({.config = config, .seed = round}, experts);
      const TestTraffic second({.config = config, .seed = round + 100}, experts);
      ranks.Upload(0, first);
      ranks.Upload(1, second);
      all([&](int r) { ranks.BeginDispatch(r, 0, first); });
      all([&](int r) { ranks.BeginDispatch(r, 1, second); });
      all([&](int r) { ranks.EndDispatch(r, 0); });
      all([&](int r) { ranks.BeginCombine(r, 0); });
      all([&](int r) { ranks.EndDispatch(r, 1); });
      all([&](int r) { ranks.EndCombine(r, 0); });
      all([&](int r) { ranks.BeginCombine(r, 1); });
      all([&](int r) { ranks.EndCombine(r, 1); });
      ranks.Synchronize();
      ranks.CheckAll(0, first);
      ranks.CheckAll(1, second);
      if (HasFatalFailure()) return;
    }
  }
}

// Sums are bit-identical for every grid size and both tunings.
TEST_F(CudaExchange, GivesTheSameBitsWhateverTheBlocks) {
  std::vector<float> first;
  for (const bool low_latency : {false, true}) {
    for (const int blocks : {1, 5, kBlocks}) {
      ExchangeConfig config = SmallConfig(2);
      config.low_latency = low_latency;
      config.blocks = blocks;
      const ExpertMap experts(20, 2, false);
      const TestTraffic traffic({.config = config, .tokens = 37}, experts);
      TestExchangeRanks ranks(config, experts);
      ranks.Upload(0, traffic);
      ranks.Run(0, traffic);
      ranks.Synchronize();
      const std::vector<float> sums = ranks.Sums(0, 0, traffic);
      if (first.empty()) first = sums;
      EXPECT_EQ(std::memcmp(first.data(), sums.data(), sums.size() * sizeof(float)), 0);
    }
  }
}

// A captured graph is replayed with other tokens and other routing in the same buffers.
void ExpectReplays(bool in_parts) {
  for (const bool low_latency : {false, true}) {
    ExchangeConfig config = SmallConfig(2);
    config.low_latency = low_latency;
    const ExpertMap experts(20, 2, false);
    TestExchangeRanks ranks(config, experts);
    const auto traffic_of = [&](uint32_t seed) {
      return TestTraffic({.config = config, .tokens = 31, .seed = seed}, experts);
    };
    const auto positions = static_cast<int32_t>(config.ranks * config.max_tokens * config.top_k);
    const std::vector<int32_t> bounds = {0, positions / 3, positions / 2, positions};
    for (int r = 0; r < config.ranks; ++r) ranks.SetBounds(r, bounds);
    std::vector<cudaGraphExec_t> graphs(config.ranks);
    for (int r = 0; r < config.ranks; ++r) {
      ranks.Use(r);
      cudaGraph_t graph;
      Check(cudaStreamBeginCapture(ranks.stream(r), cudaStreamCaptureModeThreadLocal), "capture");
      ranks.BeginDispatch(r, 0, traffic_of(0));
      ranks.EndDispatch(r, 0);
      if (in_parts) {
        ranks.BeginCombineInParts(r, 0, bounds);
      } else {
        ranks.BeginCombine(r, 0);
      }
      ranks.EndCombine(r, 0);
      Check(cudaStreamEndCapture(ranks.stream(r), &graph), "capture");
      Check(cudaGraphInstantiate(&graphs[r], graph, 0), "graph");
      Check(cudaGraphDestroy(graph), "graph");
    }
    for (uint32_t replay = 0; replay < 10; ++replay) {
      const TestTraffic traffic = traffic_of(replay);
      ranks.Upload(0, traffic);
      for (int r = 0; r < config.ranks; ++r) {
        ranks.Use(r);
        Check(cudaGraphLaunch(graphs[r], ranks.stream(r)), "replay");
      }
      ranks.Synchronize();
      ranks.CheckAll(0, traffic);
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const cudaGraphExec_t graph : graphs) Check(cudaGraphExecDestroy(graph), "graph");
  }
}

TEST_F(CudaExchange, IsReplayedAsGraph) { ExpectReplays(/*in_parts=*/false); }
TEST_F(CudaExchange, IsReplayedAsGraphInParts) { ExpectReplays(/*in_parts=*/true); }

TEST_F(CudaExchange, WorksWithoutMaskedRanks) {
  for (const bool by_rank : {false, true}) {
    ExchangeConfig config = SmallConfig(3);
    config.sum_by_rank = by_rank;
    config.in_flight = 1;
    const ExpertMap experts(20, 3, false);
    TestExchangeRanks ranks(config, experts);
    for (const std::vector<bool>& active :
         {std::vector<bool>{true, true, true}, {true, false, true}, {true, false, false}}) {
      const TestTraffic traffic({.config = config, .active = active, .tokens = 33}, experts);
      ranks.SetActive(active);
      ranks.Upload(0, traffic);
      ranks.Run(0, traffic);
      ranks.Synchronize();
      ranks.CheckAll(0, traffic);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaExchange, AMissingRankIsATimeout) {
  const ExchangeConfig config = SmallConfig(2);
  const ExpertMap experts(20, 2, false);
  const TestTraffic traffic({.config = config, .tokens = 9}, experts);
  TestExchangeRanks ranks(config, experts, 50'000'000);
  ranks.Upload(0, traffic);
  ranks.BeginDispatch(0, 0, traffic);
  ranks.EndDispatch(0, 0);
  ranks.BeginCombine(0, 0);
  ranks.EndCombine(0, 0);
  Check(cudaStreamSynchronize(ranks.stream(0)), "the stream drains");
  const WaitTimeoutReport& report = ranks.report(0);
  EXPECT_EQ(report.failed, 1u);
  EXPECT_EQ(report.stage, static_cast<int32_t>(WaitStage::kDispatch));
  EXPECT_EQ(report.rank, 0);
  EXPECT_EQ(report.peer, 1);
  EXPECT_EQ(report.wanted, 1u);
  EXPECT_EQ(report.seen, 0u);
}

TEST_F(CudaExchange, RefusesWhatItCannotDo) {
  const auto refuses = [](auto change) {
    ExchangeConfig config = SmallConfig(2);
    change(config);
    EXPECT_THROW(Exchange::PeerBytes(config), Error);
  };
  refuses([](ExchangeConfig& c) { c.ranks = 17; });
  refuses([](ExchangeConfig& c) { c.top_k = kMaxExchangeTopK + 1; });
  refuses([](ExchangeConfig& c) { c.hidden = 100; });
  refuses([](ExchangeConfig& c) { c.dispatched = {DType::kF16}; });
  refuses([](ExchangeConfig& c) { c.combined = DType::kF16; });
  refuses([](ExchangeConfig& c) { c.max_tokens = int64_t{1} << 24; });
  const ExpertMap experts(20, 2, false);
  TestExchangeRanks ranks(SmallConfig(2), experts);
  EXPECT_THROW(ranks.exchange(0).BeginDispatch(0, {.tokens = 41}, nullptr), Error);
}

// Runs an exchange over the engine's peer memory, with one thread per rank.
TEST_F(CudaExchange, RunsOverPeerMemory) {
  ExchangeConfig config = SmallConfig(2);
  const ExpertMap experts(20, 2, false);
  const TestTraffic traffic({.config = config, .tokens = 40}, experts);
  const MeshShape shape = {.tp = 2, .ep = 2};
  const size_t bytes = Exchange::PeerBytes(config);
  RunRankThreads(2, RankComm::BytesPerRank(shape), [&](int r, std::shared_ptr<SharedArena> arena) {
    UseDevice(r % DeviceCount());
    const auto comm = RankComm::Create(std::move(arena), shape, r);
    PeerMemory memory(*comm, bytes, std::chrono::seconds(20));
    ExchangeConfig own = config;
    own.rank = r;
    Exchange exchange(own, experts, memory);
    const TestTraffic::Rank& in = traffic.ranks[r];
    const auto upload = [](const auto& from) {
      DeviceMemory to(from.size() * sizeof(from[0]));
      CopyToDevice(to.data(), from.data(), to.bytes(), "upload");
      return to;
    };
    const DeviceMemory x = upload(in.x), ids = upload(in.ids), weights = upload(in.weights),
                       outputs = upload(in.outputs), position = upload(in.position);
    const std::vector<float> want = traffic.Sums(r);
    DeviceMemory y(want.size() * sizeof(float));
    std::vector<float> got(want.size());
    const Stream stream;
    comm->tp->Barrier("all is allocated");  // so that no allocation waits for a kernel of a peer
    for (int slot = 0; slot < config.in_flight; ++slot) {
      exchange.BeginDispatch(slot,
                             {.x = x.data(),
                              .ids = ids.as<int32_t>(),
                              .weights = weights.as<float>(),
                              .tokens = in.tokens(config.top_k)},
                             stream.get());
      exchange.EndDispatch(slot, stream.get());
      exchange.BeginCombine(slot, outputs.data(), position.as<int32_t>(), stream.get());
      exchange.EndCombine(slot, y.as<float>(), stream.get());
    }
    stream.Synchronize();
    memory.CheckTimeouts();
    Check(cudaMemcpy(got.data(), y.data(), y.bytes(), cudaMemcpyDeviceToHost), "download");
    EXPECT_EQ(std::memcmp(got.data(), want.data(), y.bytes()), 0) << "rank " << r;
    comm->tp->Barrier("all has been read");
  });
}

}  // namespace
}  // namespace switchyard::cuda
