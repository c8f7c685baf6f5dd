#include "moe/cuda/dispatchers/nccl_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/device/cuda/nccl_library.h"
#include "core/error.h"
#include "moe/cuda/dispatchers/exchange.h"
#include "moe/cuda/dispatchers/nccl_exchange_plan.h"
#include "moe/cuda/dispatchers/test_exchange_expectations.h"
#include "moe/cuda/dispatchers/test_exchange_traffic.h"

namespace switchyard::cuda {
namespace {

constexpr std::chrono::milliseconds kTimeout{20'000};
constexpr RowFormat kFp8 = {.dtype = DType::kBF16, .fp8 = true};

// A rank with its own GPU and peer memory, connected to the other ranks by NCCL only. The reference
// exchange uses a second peer memory, which all ranks share.
struct NcclRank {
  NcclRank(std::shared_ptr<SharedArena> arena, int ranks, int rank_in, const ExchangeConfig& c)
      : rank((UseDevice(rank_in), rank_in)),
        comm(RankComm::Create(std::move(arena), {.tp = ranks, .ep = ranks}, rank, {kTimeout})),
        apart(*comm, NcclExchange::PeerBytes(c), kTimeout, /*ranks_per_host=*/1),
        shared(*comm, Exchange::PeerBytes(c), kTimeout) {
    const NcclLibrary& nccl = NcclLibrary::Get();
    NcclUniqueId id;
    if (rank == 0) {
      EXPECT_EQ(nccl.GetUniqueId(&id), kNcclSuccess);
    }
    std::vector<NcclUniqueId> ids(ranks);
    comm->tp->AllGather(&id, ids.data(), sizeof id);
    group = std::make_unique<NcclGroup>(nccl, ids[0], rank, ranks, "ep", stream.get(),
                                        std::make_shared<NcclWatch>(*comm, kTimeout));
  }

  int rank;
  std::unique_ptr<RankComm> comm;
  Stream stream;
  PeerMemory apart, shared;
  std::unique_ptr<NcclGroup> group;
};

// Inputs and outputs of one batch on a rank's GPU.
class Batch {
 public:
  explicit Batch(const ExchangeConfig& c)
      : x_(c.max_tokens * c.hidden * 4),
        ids_(c.max_tokens * c.top_k * 4),
        weights_(c.max_tokens * c.top_k * 4),
        outputs_(c.ranks * c.max_tokens * c.top_k * c.hidden * SizeOf(c.combined)),
        position_(c.ranks * c.max_tokens * c.top_k * 4),
        y_(c.max_tokens * c.hidden * 4) {}

  void Upload(const TestTraffic& traffic, int rank) {
    const TestTraffic::Rank& in = traffic.ranks[rank];
    Copy(x_, in.x);
    Copy(ids_, in.ids);
    Copy(weights_, in.weights);
    Copy(outputs_, in.outputs);
    Copy(position_, in.position);
    Check(cudaMemset(y_.data(), 0xff, y_.bytes()), "clearing");
    Check(cudaDeviceSynchronize(), "upload");
    const int k = traffic.spec.config.top_k;
    tokens_ = {.x = x_.data(),
               .ids = ids_.as<int32_t>(),
               .weights = weights_.as<float>(),
               .tokens = in.tokens(k)};
    for (const auto& of_rank : traffic.ranks)
      tokens_.longest = std::max(tokens_.longest, of_rank.tokens(k));
  }
  void ClearLongest() { tokens_.longest = 0; }

  void BeginDispatch(RowExchange& exchange, int slot, const Stream& stream) const {
    exchange.BeginDispatch(slot, tokens_, stream.get());
  }
  void EndDispatch(RowExchange& exchange, int slot, const Stream& stream) {
    rows_ = exchange.EndDispatch(slot, stream.get());
  }
  void BeginCombine(RowExchange& exchange, int slot, const Stream& stream) const {
    exchange.BeginCombine(slot, outputs_.data(), position_.as<int32_t>(), stream.get());
  }
  void EndCombine(RowExchange& exchange, int slot, const Stream& stream) const {
    exchange.EndCombine(slot, y_.as<float>(), stream.get());
  }
  void Run(RowExchange& exchange, const Stream& stream) {
    BeginDispatch(exchange, 0, stream);
    EndDispatch(exchange, 0, stream);
    BeginCombine(exchange, 0, stream);
    EndCombine(exchange, 0, stream);
  }

  const DispatchedRows& rows() const { return rows_; }
  std::vector<float> Sums(const TestTraffic& traffic) const {
    return ReadGpu<float>(y_.data(), tokens_.tokens * traffic.spec.config.hidden);
  }

 private:
  template <typename T>
  static void Copy(const DeviceMemory& to, const std::vector<T>& from) {
    CopyToDevice(to.data(), from.data(), from.size() * sizeof(T), "upload");
  }

  DeviceMemory x_, ids_, weights_, outputs_, position_, y_;
  RowExchange::Tokens tokens_;
  DispatchedRows rows_;
};

// Runs body(rank, its configuration) on each rank's thread.
void OnRanks(const ExchangeConfig& config,
             const std::function<void(NcclRank&, const ExchangeConfig&)>& body) {
  RunRankThreads(config.ranks, RankComm::BytesPerRank({.tp = config.ranks, .ep = config.ranks}),
                 [&](int r, std::shared_ptr<SharedArena> arena) {
                   NcclRank rank(std::move(arena), config.ranks, r, config);
                   ExchangeConfig own = config;
                   own.rank = r;
                   body(rank, own);
                   rank.stream.Synchronize();
                   rank.comm->tp->Barrier("end");
                 });
}

// The parameter is the number of ranks. A single rank, which sends to itself, covers everything
// except transfers between GPUs.
class CudaNcclExchange : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (DeviceCount() < GetParam()) GTEST_SKIP() << "NCCL needs one GPU per rank";
    if (!NcclLibrary::Get().missing.empty()) GTEST_SKIP() << NcclLibrary::Get().missing;
  }

  ExchangeConfig SmallConfig() const {
    return {.ranks = GetParam(),
            .hidden = 1152,
            .top_k = 6,
            .max_tokens = 40,
            .dispatched = kFp8,
            .combined = DType::kBF16};
  }
  // The largest batches use counted mode (nccl_exchange.h) and send the returns of a rank in two
  // pieces.
  ExchangeConfig CountedConfig() const {
    return {.ranks = GetParam(),
            .hidden = 2048,
            .top_k = 8,
            .max_tokens = 160 / GetParam() + 10,
            .dispatched = {DType::kBF16},
            .combined = DType::kF32};
  }
  ExchangeConfig CountedByRankConfig() const {
    return {.ranks = GetParam(),
            .hidden = 7168,
            .top_k = 2,
            .max_tokens = 180 / GetParam() + 10,
            .dispatched = {DType::kF32},
            .combined = DType::kF32,
            .sum_by_rank = true};
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaNcclExchange, ::testing::Values(1, 2, 3, 4));

// The received rows must equal those of the CPU's dispatch. The sums must equal those of the CPU
// and of the exchange over peer memory.
TEST_P(CudaNcclExchange, GivesWhatPeerMemoryGives) {
  std::vector<ExchangeConfig> configs = {CountedConfig(), CountedByRankConfig()};
  for (const ExchangeConfig& c : configs) ASSERT_LT(NcclPlanOf(c).fixed_tokens, c.max_tokens);
  for (const bool by_rank : {false, true}) {
    for (const bool low_latency : {false, true}) {
      configs.push_back(SmallConfig());
      configs.back().sum_by_rank = by_rank;
      configs.back().low_latency = low_latency;
    }
  }
  configs.push_back(SmallConfig());
  configs.back().max_tokens = 1;
  configs.back().dispatched = {DType::kF32};
  for (const ExchangeConfig& config : configs) {
    SCOPED_TRACE(fmt::format("hidden {}, by {}, {}", config.hidden,
                             config.sum_by_rank ? "rank" : "slot",
                             config.low_latency ? "low latency" : "normal"));
    const ExpertMap experts(5 * config.ranks + 1, config.ranks, false);
    std::vector<TestTraffic> traffic;
    for (const int64_t tokens : {int64_t{-1}, config.max_tokens, int64_t{1}, int64_t{-1}})
      traffic.emplace_back(
          TestTraffic::Spec{
              .config = config, .tokens = tokens, .seed = static_cast<uint32_t>(traffic.size())},
          experts);
    OnRanks(config, [&](NcclRank& rank, const ExchangeConfig& own) {
      NcclExchange nccl(own, experts, rank.apart, *rank.group);
      Exchange peers(own, experts, rank.shared);
      Batch batch(own);
      for (size_t i = 0; i < traffic.size(); ++i) {
        batch.Upload(traffic[i], rank.rank);
        if (i == 3) batch.ClearLongest();
        batch.Run(nccl, rank.stream);
        rank.stream.Synchronize();
        ExpectDispatched(own, rank.rank, batch.rows(), traffic[i]);
        const std::vector<float> sums = batch.Sums(traffic[i]);
        ExpectSums(rank.rank, sums, traffic[i]);
        rank.comm->tp->Barrier("before peer memory");
        batch.Run(peers, rank.stream);
        rank.stream.Synchronize();
        rank.shared.CheckTimeouts();
        EXPECT_TRUE(kernels::SameBits(batch.Sums(traffic[i]), sums)) << "batch " << i;
        if (::testing::Test::HasFatalFailure()) break;
      }
    });
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaNcclExchange, KeepsBatchesInFlightApart) {
  for (const ExchangeConfig& config : {SmallConfig(), CountedConfig()}) {
    const ExpertMap experts(20, config.ranks, false);
    const TestTraffic first({.config = config, .seed = 1}, experts);
    const TestTraffic second({.config = config, .seed = 2}, experts);
    OnRanks(config, [&](NcclRank& rank, const ExchangeConfig& own) {
      NcclExchange exchange(own, experts, rank.apart, *rank.group);
      Batch a(own), b(own);
      a.Upload(first, rank.rank);
      b.Upload(second, rank.rank);
      a.BeginDispatch(exchange, 0, rank.stream);
      b.BeginDispatch(exchange, 1, rank.stream);
      a.EndDispatch(exchange, 0, rank.stream);
      a.BeginCombine(exchange, 0, rank.stream);
      b.EndDispatch(exchange, 1, rank.stream);
      a.EndCombine(exchange, 0, rank.stream);
      b.BeginCombine(exchange, 1, rank.stream);
      b.EndCombine(exchange, 1, rank.stream);
      rank.stream.Synchronize();
      ExpectDispatched(own, rank.rank, a.rows(), first);
      ExpectDispatched(own, rank.rank, b.rows(), second);
      ExpectSums(rank.rank, a.Sums(first), first);
      ExpectSums(rank.rank, b.Sums(second), second);
    });
  }
}

// Tests low-latency batches, and normal batches of the largest size that may be captured.
TEST_P(CudaNcclExchange, IsReplayedAsGraph) {
  for (const bool low_latency : {false, true}) {
    ExchangeConfig config = CountedConfig();
    config.low_latency = low_latency;
    config.recorded_tokens = config.max_tokens - 1;
    const ExpertMap experts(20, config.ranks, false);
    std::vector<TestTraffic> traffic;
    for (const uint32_t seed : {1, 2, 3})
      traffic.emplace_back(
          TestTraffic::Spec{.config = config, .tokens = config.recorded_tokens, .seed = seed},
          experts);
    OnRanks(config, [&](NcclRank& rank, const ExchangeConfig& own) {
      NcclExchange exchange(own, experts, rank.apart, *rank.group);
      Batch batch(own);
      batch.Upload(traffic[0], rank.rank);
      cudaGraph_t graph;
      cudaGraphExec_t replay;
      Check(cudaStreamBeginCapture(rank.stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
      batch.Run(exchange, rank.stream);
      Check(cudaStreamEndCapture(rank.stream.get(), &graph), "capture");
      Check(cudaGraphInstantiate(&replay, graph, 0), "graph");
      Check(cudaGraphDestroy(graph), "graph");
      rank.comm->tp->Barrier("recorded");
      for (const TestTraffic& t : traffic) {
        batch.Upload(t, rank.rank);
        Check(cudaGraphLaunch(replay, rank.stream.get()), "replay");
        rank.stream.Synchronize();
        ExpectDispatched(own, rank.rank, batch.rows(), t);
        ExpectSums(rank.rank, batch.Sums(t), t);
      }
      Check(cudaGraphExecDestroy(replay), "graph");
    });
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaNcclExchange, RefusesMoreTokensThanItHolds) {
  const ExchangeConfig config = SmallConfig();
  const ExpertMap experts(20, config.ranks, false);
  OnRanks(config, [&](NcclRank& rank, const ExchangeConfig& own) {
    NcclExchange exchange(own, experts, rank.apart, *rank.group);
    const auto refuses = [&](const RowExchange::Tokens& tokens) {
      EXPECT_THROW(exchange.BeginDispatch(0, tokens, rank.stream.get()), Error);
    };
    refuses({.tokens = 41});
    refuses({.tokens = 8, .longest = 7});
    refuses({.tokens = 8, .longest = 41});
    refuses({.dtype = DType::kF16, .tokens = 8});
  });
}

// Batches of more than a few tokens use counted mode. The exception are batches that must not wait
// on the host.
TEST(NcclExchangePlan, SendsFewTokensInMessagesOfFixedSize) {
  ExchangeConfig c = {.ranks = 16,
                      .hidden = 7168,
                      .top_k = 8,
                      .max_tokens = 4096,
                      .dispatched = kFp8,
                      .combined = DType::kBF16};
  EXPECT_EQ(NcclPlanOf(c).fixed_tokens, 2);
  const NcclSlotPlan plan = NcclPlanOf(c);
  EXPECT_GE(plan.send_buffer_bytes, 4096 * 7296);  // the rows of one rank
  EXPECT_LT(plan.bytes, int64_t{2} << 30);
  c.recorded_tokens = 256;
  EXPECT_EQ(NcclPlanOf(c).fixed_tokens, 256);
  c.low_latency = true;
  c.max_tokens = 128;
  EXPECT_EQ(NcclPlanOf(c).fixed_tokens, 128);
  EXPECT_GE(NcclPlanOf(c).send_buffer_bytes, 128 * 8 * 7168 * 2);  // the returns of one rank
  c.ranks = 17;
  EXPECT_THROW(NcclPlanOf(c), Error);
}

}  // namespace
}  // namespace switchyard::cuda
