// --moe-combine-rows rank: each rank returns its partial sum of a token as one row.
#include <string>

#include "gtest/gtest.h"
#include "moe/dispatchers/test_exchange.h"
#include "moe/layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

constexpr int64_t kHidden = 192;
constexpr int kExperts = 10, kTopK = 3;

TestLayer SmallLayer() {
  return TestLayer(
      {.hidden = kHidden, .intermediate = 96, .num_experts = kExperts, .top_k = kTopK});
}

class CombineByRankTest : public ::testing::TestWithParam<ExchangeKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CombineByRankTest,
                         ::testing::Values(ExchangeKind{"deepep", "normal"},
                                           ExchangeKind{"deepep", "low_latency"},
                                           ExchangeKind{"mooncake", "auto"}),
                         [](const auto& info) { return NameOf(info.param); });

// mooncake supports one host only.
class CombineByRankOverHostsTest : public CombineByRankTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, CombineByRankOverHostsTest,
                         ::testing::Values(ExchangeKind{"deepep", "normal"},
                                           ExchangeKind{"deepep", "low_latency"}),
                         [](const auto& info) { return NameOf(info.param); });

MoeOptions ByRank(const ExchangeKind& kind, RowFormat format) {
  MoeOptions options = kind.Options(format);
  options.combine_rows = "rank";
  return options;
}

std::vector<SomeTokens> Batches() {
  return {SomeTokens::Random(37, kExperts, kTopK, kHidden, 1),
          // Some ranks have no tokens, some experts have no rows.
          SomeTokens::Random(3, kExperts, kTopK, kHidden, 2),
          SomeTokens(std::vector<int32_t>(27, -1), kTopK, kHidden, 3),
          SomeTokens({}, kTopK, kHidden, 3), SomeTokens::Random(24, kExperts, kTopK, kHidden, 5)};
}

// Relative to the largest value. The reduction order differs, and there is one more rounding.
double Tolerance(RowFormat format) { return format.dtype == DType::kF32 ? 1e-5 : 1.2e-2; }

TEST_P(CombineByRankTest, IsTheSumOfSlotsWithinRounding) {
  const TestLayer layer = SmallLayer();
  const auto batches = Batches();
  for (const RowFormat format :
       {RowFormat{DType::kF32}, RowFormat{DType::kBF16}, RowFormat{DType::kBF16, true}}) {
    const auto want = RunExchange(GetParam().Options(format), layer, {1, 1}, batches);
    for (const int ranks : {1, 2, 4, 8}) {
      const auto got = RunExchange(ByRank(GetParam(), format), layer, {ranks, ranks}, batches);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LT(RelativeError(got[i][0], want[i][0]), Tolerance(format))
            << "batch " << i << " on " << ranks;
    }
  }
}

TEST_P(CombineByRankOverHostsTest, RanksOfSeveralHostsAreAsThoseOfOne) {
  const TestLayer layer = SmallLayer();
  const auto batches = Batches();
  const MoeOptions options = ByRank(GetParam(), {DType::kBF16});
  const auto want = RunExchange(options, layer, {4, 4}, batches);
  const auto got = RunExchange(options, layer, {4, 4}, batches, /*ranks_per_host=*/2);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(SameBits(got[i][0], want[i][0])) << i;
}

// Weights are sent with the first dispatch only. The combine of the second dispatch uses the same
// weights.
TEST_P(CombineByRankTest, ASecondDispatchByTheSameRouting) {
  const TestLayer layer = SmallLayer();
  const SomeTokens tokens = SomeTokens::Random(18, kExperts, kTopK, kHidden, 1);
  RunExchangeRanks(ByRank(GetParam(), {}), layer, {4, 4}, 18, [&](const ExchangeRank& rank) {
    ExchangeBatch batch = rank.ShareOf(tokens), other = rank.ShareOf(tokens);
    batch.RunAll(rank.moe, rank.block);
    const std::vector<float> want = batch.y;
    other.Begin(rank.moe);  // uses the buffer slot that the first batch has released
    rank.moe.dispatcher().BeginDispatchAgain(batch.x.data(), /*decode=*/false, &batch.handle);
    std::ranges::fill(batch.y, NAN);
    batch.Compute(rank.moe, rank.block);
    batch.End(rank.moe, rank.block);
    EXPECT_TRUE(SameBits(batch.y, want));
    other.Compute(rank.moe, rank.block);
    other.End(rank.moe, rank.block);
    EXPECT_TRUE(SameBits(other.y, want));
  });
}

// A token's sum depends neither on other tokens of the batch nor on rounds.
TEST_P(CombineByRankTest, RoundsChangeNoBit) {
  const TestLayer layer = SmallLayer();
  const MeshShape mesh{.tp = 4, .ep = 4, .dp = 2};
  const TestPass pass{{9, 14}, {0, 0}};
  MoeOptions options = ByRank(GetParam(), {DType::kBF16});
  const auto want = RunPasses(layer, options, mesh, {pass});
  options.long_seq_per_round_tokens = options.max_dispatch_tokens_per_rank = 2;
  EXPECT_TRUE(SameBits(RunPasses(layer, options, mesh, {pass}), want));
}

}  // namespace
}  // namespace switchyard
