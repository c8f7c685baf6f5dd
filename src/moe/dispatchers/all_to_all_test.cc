// Properties of every all-to-all exchange (dispatchers and fused operators): bit-identical results,
// batches in flight, capacities, and timeouts that name the peer.
#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <thread>

#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/dispatchers/fused_tiles.h"
#include "moe/dispatchers/test_exchange.h"
#include "moe/layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 160;
constexpr int kExperts = 10, kTopK = 3;
const ExchangeKind kReference = {"deepep", "normal"};

TestLayer SmallLayer() {
  return TestLayer(
      {.hidden = kHidden, .intermediate = 96, .num_experts = kExperts, .top_k = kTopK});
}

SomeTokens SameExperts(int64_t tokens, std::array<int32_t, kTopK> ids) {
  std::vector<int32_t> all;
  for (int64_t t = 0; t < tokens; ++t) all.insert(all.end(), ids.begin(), ids.end());
  return {std::move(all), kTopK, kHidden, 3};
}

// Batches that run one after the other on the same buffers. Data that a batch leaves in the buffers
// must not affect the next batch.
std::vector<SomeTokens> RoutingPatterns() {
  return {
      SomeTokens::Random(37, kExperts, kTopK, kHidden, 1),
      SameExperts(16, {7, -1, -1}),  // one hot expert
      SameExperts(9, {-1, -1, -1}),  // no experts
      // Some ranks have no tokens, some experts have no rows.
      SomeTokens::Random(3, kExperts, kTopK, kHidden, 2),
      SameExperts(0, {0, 0, 0}),   // no tokens at all
      SameExperts(12, {4, 0, 9}),  // few experts have all rows
      SomeTokens::Random(24, kExperts, kTopK, kHidden, 5),
  };
}

template <typename Predicate>
auto KindsThat(const Predicate& predicate) {
  std::vector<ExchangeKind> kinds;
  std::ranges::copy_if(kAllToAllKinds, std::back_inserter(kinds), predicate);
  return ::testing::ValuesIn(kinds);
}
std::string ParamName(const ::testing::TestParamInfo<ExchangeKind>& info) {
  return NameOf(info.param);
}

class AllToAllTest : public ::testing::TestWithParam<ExchangeKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, AllToAllTest, ::testing::ValuesIn(kAllToAllKinds), ParamName);

// All backends except mooncake. They need every rank, and their ranks may be on several hosts.
class StrictAllToAllTest : public AllToAllTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, StrictAllToAllTest,
                         KindsThat([](const auto& kind) { return kind.a2a != "mooncake"; }),
                         ParamName);

// Backends that use a runner.
class AllToAllDispatcherTest : public AllToAllTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, AllToAllDispatcherTest,
                         KindsThat([](const auto& kind) { return kind.a2a != "fused"; }),
                         ParamName);

// Backends that split prefill batches into rounds by --deepep-normal-long-seq-per-round-tokens.
class AllToAllRoundsTest : public AllToAllTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, AllToAllRoundsTest,
                         KindsThat([](const auto& kind) { return kind.mode != "low_latency"; }),
                         ParamName);

void ExpectSame(const ExchangeOutputs& got, const ExchangeOutputs& want) {
  for (size_t batch = 0; batch < want.size(); ++batch)
    for (size_t part = 0; part < want[batch].size(); ++part)
      EXPECT_TRUE(SameBits(got[batch][part], want[batch][part]))
          << "batch " << batch << ", MoE-TP rank " << part;
}

TEST_P(AllToAllTest, BitsAreThoseOfOneRankWithDeepEp) {
  const TestLayer layer = SmallLayer();
  const auto batches = RoutingPatterns();
  for (const RowFormat format :
       {RowFormat{DType::kF32}, RowFormat{DType::kBF16}, RowFormat{DType::kBF16, true}}) {
    const auto want = RunExchange(kReference.Options(format), layer, {1, 1}, batches);
    for (const int ranks : {1, 2, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} fp8 {} on {}", Name(format.dtype), format.fp8, ranks));
      ExpectSame(RunExchange(GetParam().Options(format), layer, {ranks, ranks}, batches), want);
    }
  }
}

TEST_P(AllToAllTest, MoeTpGroupsExchangeConcurrently) {
  const TestLayer layer = SmallLayer();
  const auto batches = RoutingPatterns();
  const RowFormat format{DType::kBF16};
  for (const MeshShape& mesh : {MeshShape{2, 1}, {4, 2}, {8, 4}})
    ExpectSame(RunExchange(GetParam().Options(format), layer, mesh, batches),
               RunExchange(kReference.Options(format), layer, mesh, batches));
}

TEST_P(AllToAllTest, MoreRanksThanExperts) {
  const TestLayer layer({.hidden = 32, .intermediate = 32, .num_experts = 3, .top_k = 2});
  const std::vector batches = {SomeTokens::Random(20, 3, 2, 32, 1)};
  ExpectSame(RunExchange(GetParam().Options(), layer, {8, 8}, batches),
             RunExchange(kReference.Options(), layer, {1, 1}, batches));
}

TEST_P(StrictAllToAllTest, RanksOfSeveralHosts) {
  const TestLayer layer = SmallLayer();
  const auto batches = RoutingPatterns();
  const RowFormat format{DType::kBF16};
  ExpectSame(RunExchange(GetParam().Options(format), layer, {4, 4}, batches, /*ranks_per_host=*/2),
             RunExchange(kReference.Options(format), layer, {1, 1}, batches));
}

// Dispatches other rows with the routing of the previous batch, as training does for gradients.
TEST_P(AllToAllDispatcherTest, ASecondDispatchByTheSameRouting) {
  const TestLayer layer = SmallLayer();
  SomeTokens first = SomeTokens::Random(18, kExperts, kTopK, kHidden, 1), second = first;
  second.x = layer.Hidden(18, 5);
  const auto want = RunExchange(kReference.Options(), layer, {1, 1}, {second});
  RunExchangeRanks(GetParam().Options(), layer, {4, 4}, 18, [&](const ExchangeRank& rank) {
    ExchangeBatch batch = rank.ShareOf(first);
    batch.RunAll(rank.moe, rank.block);
    batch.x = rank.ShareOf(second).x;
    rank.moe.dispatcher().BeginDispatchAgain(batch.x.data(), /*decode=*/false, &batch.handle);
    while (!rank.moe.dispatcher().Arrived(&batch.handle)) std::this_thread::yield();
    batch.Compute(rank.moe, rank.block);
    batch.End(rank.moe, rank.block);
    const Range share = EvenPart(18, rank.ep, rank.ep_rank);
    EXPECT_TRUE(SameBits(batch.y.data(), want[0][0].data() + share.begin * kHidden,
                         share.size() * kHidden));
  });
}

TEST_P(AllToAllTest, TwoBatchesInFlightEndInEitherOrder) {
  const TestLayer layer = SmallLayer();
  const std::vector batches = {SomeTokens::Random(18, kExperts, kTopK, kHidden, 1),
                               SomeTokens::Random(7, kExperts, kTopK, kHidden, 2)};
  const auto want = RunExchange(kReference.Options(), layer, {1, 1}, batches);
  for (const bool first_first : {true, false}) {
    RunExchangeRanks(GetParam().Options(), layer, {4, 4}, 18, [&](const ExchangeRank& rank) {
      for (int round = 0; round < 3; ++round) {
        ExchangeBatch a = rank.ShareOf(batches[0]), b = rank.ShareOf(batches[1]);
        a.Begin(rank.moe, /*decode=*/false);
        b.Begin(rank.moe, /*decode=*/true);
        const auto order = first_first ? std::array{&a, &b} : std::array{&b, &a};
        for (ExchangeBatch* batch : order) batch->Compute(rank.moe, rank.block);
        for (ExchangeBatch* batch : order) batch->End(rank.moe, rank.block);
        for (const auto& [batch, i] : {std::pair{&a, 0}, {&b, 1}}) {
          const Range share = EvenPart(batches[i].topk.tokens, rank.ep, rank.ep_rank);
          EXPECT_TRUE(SameBits(batch->y.data(), want[i][0].data() + share.begin * kHidden,
                               share.size() * kHidden))
              << "batch " << i << " on rank " << rank.ep_rank;
        }
      }
    });
  }
}

TEST_P(AllToAllTest, LongBatchesGoInRounds) {
  const TestLayer layer = SmallLayer();
  const int64_t tokens = 29, none = 0;
  const auto run = [&](MoeOptions options, int ranks) {
    std::vector<float> out(tokens * kHidden);
    RunMoeRanks(options, layer.Shape(tokens), {ranks, ranks},
                [&](RankComm& comm, ThreadPool& pool) {
                  const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                                     MakeCpuMoe(options, layer.Shape(tokens), comm, pool));
                  std::vector<float> mine(out.size());
                  moe.Forward(*moe.MakeState(), layer.Hidden(tokens).data(),
                              {{&tokens, 1}, {&none, 1}}, mine.data());
                  if (comm.mesh.rank() == 0) out = mine;
                });
    return out;
  };
  const std::vector<float> want = run(kReference.Options(), 1);
  for (const int ranks : {1, 4}) {
    MoeOptions options = GetParam().Options({}, /*capacity=*/3);
    options.long_seq_per_round_tokens = 3;
    EXPECT_TRUE(SameBits(run(options, ranks), want)) << ranks << " ranks";
  }
}

TEST_P(AllToAllRoundsTest, MoreRoundsThanAllowedAreRefused) {
  MoeOptions options = GetParam().Options();
  options.long_seq_per_round_tokens = 4;
  options.long_seq_rounds = 2;
  const auto bytes_for = [&](int64_t tokens) {
    return MoeSymmetricBytes(options, SmallLayer().Shape(tokens), {1, 1});
  };
  EXPECT_GT(bytes_for(8), 0u);
  EXPECT_THAT(ErrorOf([&] { bytes_for(9); }, ErrorKind::kInvalid),
              HasSubstr("--deepep-normal-long-seq-round 2"));
}

TEST_P(AllToAllTest, MoreTokensThanItsBuffersHoldAreRefused) {
  const TestLayer layer = SmallLayer();
  MoeOptions options = GetParam().Options({}, /*capacity=*/2);
  options.long_seq_per_round_tokens = 2;
  RunExchangeRanks(options, layer, {1, 1}, 8, [&](const ExchangeRank& rank) {
    ExchangeBatch three = rank.ShareOf(SameExperts(3, {0, 1, 2}));
    EXPECT_THAT(ErrorOf([&] { three.Begin(rank.moe); }, ErrorKind::kResource),
                HasSubstr("3 tokens on one rank"));
    ExchangeBatch two = rank.ShareOf(SameExperts(2, {0, 1, 2}));
    two.RunAll(rank.moe, rank.block);
    EXPECT_TRUE(std::ranges::all_of(two.y, [](float y) { return std::isfinite(y); }));
  });
}

TEST_P(AllToAllTest, MoreBatchesInFlightThanBuffersAreRefused) {
  const TestLayer layer = SmallLayer();
  const SomeTokens tokens = SameExperts(2, {0, 1, 2});
  RunExchangeRanks(GetParam().Options(), layer, {1, 1}, 2, [&](const ExchangeRank& rank) {
    ExchangeBatch a = rank.ShareOf(tokens), b = rank.ShareOf(tokens), c = rank.ShareOf(tokens);
    a.Begin(rank.moe);
    b.Begin(rank.moe);
    EXPECT_THAT(ErrorOf([&] { c.Begin(rank.moe); }, ErrorKind::kResource),
                HasSubstr("2 batches are in flight"));
  });
}

// Rank 2 of 4 runs `steps` of the three steps of a batch and then stops.
std::string TimeoutOf(const ExchangeKind& kind, int steps) {
  const TestLayer layer = SmallLayer();
  const SomeTokens tokens = SomeTokens::Random(16, kExperts, kTopK, kHidden, 1);
  return ErrorOf(
      [&] {
        RunExchangeRanks(kind.Options(), layer, {4, 4}, 16,
                         [&](const ExchangeRank& rank) {
                           ExchangeBatch batch = rank.ShareOf(tokens);
                           if (rank.ep_rank != 2) return batch.RunAll(rank.moe, rank.block);
                           if (steps > 0) batch.Begin(rank.moe);
                         },
                         {std::chrono::milliseconds(300)});
      },
      ErrorKind::kTimeout);
}

TEST_P(StrictAllToAllTest, ATimeoutNamesThePeerAndTheStage) {
  EXPECT_THAT(TimeoutOf(GetParam(), 0),
              AllOf(HasSubstr("waited 0.3 s for rank 2 in "), HasSubstr("dispatch")));
  EXPECT_THAT(TimeoutOf(GetParam(), 1),
              AllOf(HasSubstr("waited 0.3 s for rank 2 in "), HasSubstr("combine")));
}

// Tests the example in dispatcher.h. A row is one number, the token index.
class NormalLayoutTest : public AllToAllTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, NormalLayoutTest,
                         ::testing::Values(ExchangeKind{"flashinfer"},
                                           ExchangeKind{"mooncake", "normal"}),
                         ParamName);

TEST_P(NormalLayoutTest, WorkedExample) {
  const TestLayer layer({.hidden = 1, .intermediate = 1, .num_experts = 4, .top_k = 2});
  SomeTokens tokens({0, 3, 2, 3, 1, -1, 3, 0}, 2, 1, 1);
  tokens.x = {0, 1, 2, 3};
  tokens.topk.weights.assign(8, 1.0f);
  RunExchangeRanks(GetParam().Options(), layer, {2, 2}, 4, [&](const ExchangeRank& rank) {
    ExchangeBatch b = rank.ShareOf(tokens);
    b.Begin(rank.moe);
    b.dispatched = rank.moe.dispatcher().EndDispatch(&b.handle);
    const PermutePair& permute = rank.moe.permute(b.dispatched.layout);
    permute.pre(rank.moe.permute_context(), b.dispatched, &b.grouped);
    const std::span received(b.grouped.x, b.dispatched.num_rows);
    const std::span row_ids(b.grouped.row_ids, b.grouped.num_rows);
    const std::span position(b.grouped.position, 2 * b.dispatched.num_rows);
    if (rank.ep_rank == 0) {
      EXPECT_THAT(received, ElementsAre(0, 2, 3));
      EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 2, 3));
      EXPECT_THAT(row_ids, ElementsAre(0, 2, 1));
      EXPECT_THAT(position, ElementsAre(0, -1, 2, -1, -1, 1));
    } else {
      EXPECT_THAT(received, ElementsAre(0, 1, 3));
      EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 1, 4));
      EXPECT_THAT(row_ids, ElementsAre(1, 0, 1, 2));
      EXPECT_THAT(position, ElementsAre(-1, 1, 0, 2, 3, -1));
    }
    // An expert's output is ten times its input row.
    for (const int32_t row : row_ids) b.outputs.push_back(10.0f * b.grouped.x[row]);
    rank.moe.dispatcher().BeginCombine(permute.post(b.grouped, b.outputs.data()), &b.handle);
    b.End(rank.moe, rank.block);
    EXPECT_EQ(b.y, rank.ep_rank == 0 ? std::vector<float>({0, 20}) : std::vector<float>({20, 60}));
  });
}

TEST(FusedTilesTest, ScratchIsOneTileWhateverTheBatch) {
  const TestLayer layer({.hidden = 32, .intermediate = 32, .num_experts = 6, .top_k = 2});
  const int64_t tokens = 3 * FusedTiles::kTileRows + 17;
  std::vector<int32_t> ids;  // every token uses expert 1; every fifth one also uses another expert
  for (int32_t t = 0; t < tokens; ++t) ids.insert(ids.end(), {1, t % 5 == 0 ? 2 + t % 4 : -1});
  const SomeTokens batch(std::move(ids), 2, 32, 1);
  const auto want = RunExchange(kReference.Options(), layer, {1, 1}, {batch});
  for (const int ranks : {1, 2}) {
    RunExchangeRanks(ExchangeKind{"fused"}.Options(), layer, {ranks, ranks}, tokens,
                     [&](const ExchangeRank& rank) {
                       ExchangeBatch b = rank.ShareOf(batch);
                       b.RunAll(rank.moe, rank.block);
                       const auto& fused = dynamic_cast<const FusedTiles&>(*rank.moe.fused());
                       EXPECT_LE(fused.most_tile_rows(), FusedTiles::kTileRows);
                       if (rank.ep_rank == 0) {
                         EXPECT_EQ(fused.most_tile_rows(), FusedTiles::kTileRows);
                       }
                       const Range share = EvenPart(tokens, rank.ep, rank.ep_rank);
                       EXPECT_TRUE(SameBits(b.y.data(), want[0][0].data() + share.begin * 32,
                                            share.size() * 32));
                     });
  }
}

}  // namespace
}  // namespace switchyard
