// Single-batch overlap: combine returns outputs in parts while the down projection runs. Outputs
// must be bit-identical to those without overlap.
#include <chrono>
#include <cmath>
#include <string>

#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/dispatchers/test_exchange.h"
#include "moe/runners/expert_parts.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;
using ::testing::HasSubstr;

MoeOptions Overlapped(MoeOptions options) {
  options.single_batch_overlap = true;
  return options;
}

void ExpectSameBits(const TestLayer& layer, const MoeOptions& options, const MeshShape& mesh,
                    const std::vector<TestPass>& passes) {
  SCOPED_TRACE(fmt::format("{} {} {} by {} runner {} tp {} ep {} dp {}", options.a2a_backend,
                           options.deepep_mode, Name(options.row_dtype), options.combine_rows,
                           options.runner_backend, mesh.tp, mesh.ep, mesh.dp));
  EXPECT_TRUE(SameBits(RunPasses(layer, Overlapped(options), mesh, passes),
                       RunPasses(layer, options, mesh, passes)));
}

MoeOptions Options(const A2aChoice& choice, DType row_dtype, int capacity = 128) {
  return {.a2a_backend = choice.a2a,
          .deepep_mode = choice.mode,
          .max_dispatch_tokens_per_rank = capacity,
          .row_dtype = row_dtype};
}

// Passes of all sizes and kinds: groups with many tokens, few and none.
std::vector<TestPass> Passes(int dp) {
  std::vector<TestPass> passes = SpreadPasses({37, 0, 3}, dp, /*decode=*/false);
  for (const TestPass& pass : SpreadPasses({11, 1}, dp, /*decode=*/true)) passes.push_back(pass);
  TestPass mixed = TestPass::Spread(20, dp, /*decode=*/false, 5);
  for (int g = 0; g < dp; ++g) mixed.decoding[g] = mixed.tokens[g] / 3;
  passes.push_back(mixed);
  return passes;
}

const std::vector<MeshShape> kMeshes = {{.tp = 1},
                                        {.tp = 2, .ep = 2},
                                        {.tp = 4, .ep = 2},
                                        {.tp = 4, .ep = 4, .dp = 2},
                                        {.tp = 6, .ep = 3, .dp = 2},
                                        {.tp = 8, .ep = 8, .dp = 4}};

TEST(SingleBatchTest, ChangesNoBitOnAnyMeshAndBackend) {
  const TestLayer f32({.intermediate = 192, .shared = true});
  const TestLayer bf16({.format = WeightFormat::kBF16, .intermediate = 192, .shared = true});
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const MeshShape& mesh : kMeshes) {
      ExpectSameBits(f32, Options(choice, DType::kF32), mesh, Passes(mesh.dp));
      ExpectSameBits(bf16, Options(choice, DType::kBF16), mesh, Passes(mesh.dp));
    }
  }
}

TEST(SingleBatchTest, ChangesNoBitOfAnyRoutingRunnerAndRowFormat) {
  const std::vector<TestLayer::Spec> specs = {
      {.intermediate = 96, .clamped_with_biases = true},
      {.intermediate = 96, .top_k = 1, .hot_expert = 7},
      {.intermediate = 96, .shared = true, .no_experts = true},
      {.intermediate = 96, .num_experts = 3, .top_k = 2},  // some ranks have no experts
      {.intermediate = 96, .num_experts = 33, .top_k = 5}};
  const MeshShape mesh{.tp = 4, .ep = 4, .dp = 2};
  for (const TestLayer::Spec& spec : specs) {
    const TestLayer layer(spec);
    for (const A2aChoice& choice : AllA2aChoices()) {
      if (choice.a2a == "fused" || choice.a2a == "none") continue;
      MoeOptions options = Options(choice, DType::kF32);
      ExpectSameBits(layer, options, mesh, Passes(2));
      options.runner_backend = "masked_mlp";
      ExpectSameBits(layer, options, mesh, Passes(2));
    }
  }
  const TestLayer layer({.format = WeightFormat::kBF16, .intermediate = 96});
  for (const A2aChoice& choice : AllA2aChoices()) {
    MoeOptions options = Options(choice, DType::kBF16);
    options.dispatcher_output_dtype = "fp8";
    ExpectSameBits(layer, options, mesh, Passes(2));
  }
}

TEST(SingleBatchTest, ChangesNoBitOfOutputsCombinedByRank) {
  const TestLayer layer({.format = WeightFormat::kBF16, .intermediate = 96, .shared = true});
  for (const A2aChoice& choice : AllA2aChoices()) {
    if (choice.a2a != "deepep" && choice.a2a != "mooncake") continue;
    MoeOptions options = Options(choice, DType::kBF16);
    options.combine_rows = "rank";
    for (const MeshShape& mesh : kMeshes) ExpectSameBits(layer, options, mesh, Passes(mesh.dp));
  }
}

// Passes in several rounds, with one combine for all rounds or with a combine in each round.
TEST(SingleBatchTest, ChangesNoBitOfPassesInRounds) {
  const TestLayer layer({.intermediate = 96, .shared = true});
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const bool in_rounds : {false, true}) {
      MoeOptions options = Options(choice, DType::kF32, /*capacity=*/2);
      options.long_seq_per_round_tokens = 3;
      options.combine_long_seq = in_rounds;
      for (const MeshShape& mesh :
           {MeshShape{.tp = 2, .ep = 2}, MeshShape{.tp = 4, .ep = 4, .dp = 2}})
        ExpectSameBits(layer, options, mesh, Passes(mesh.dp));
    }
  }
}

TEST(SingleBatchTest, ChangesNoBitOfDispatchedSharedExpertsAndReplicas) {
  TestLayer layer({.intermediate = 96, .shared = true});
  layer.config.placement = ExpertPlacement(10, {9, 3, 0, 1, 7, 2, 8, 5, 6, 4, 0, 9});
  for (const A2aChoice& choice : AllA2aChoices()) {
    if (choice.a2a == "none") continue;
    MoeOptions options = Options(choice, DType::kF32);
    options.num_redundant_experts = 2;
    options.waterfill = true;
    ExpectSameBits(layer, options, {.tp = 4, .ep = 4, .dp = 2}, Passes(2));
  }
}

// A rank's part of a batch whose outputs are sent in parts.
struct BatchInParts : ExchangeBatch {
  using ExchangeBatch::ExchangeBatch;

  // Runs the stages from EndDispatch on, up to the first part of the combine.
  void BeginCombine(const ExchangeRank& rank) {
    dispatched = rank.moe.dispatcher().EndDispatch(&handle);
    const PermutePair& permute = rank.moe.permute(dispatched.layout);
    permute.pre(rank.moe.permute_context(), dispatched, &grouped);
    outputs.assign(grouped.num_rows * rank.moe.shape().hidden, NAN);
    experts = permute.post(grouped, outputs.data());
    rank.moe.runner().RunGateUp(rank.block, grouped, rank.moe.pool(), &middle);
  }
  void Part(const ExchangeRank& rank, int part) {
    const auto local = std::ssize(rank.block.experts);
    const Range of_part =
        ExpertParts(rank.moe.exchange().local_experts, rank.moe.dispatcher().combine_parts())
            .Of(part);
    const Range own{std::min<int64_t>(of_part.begin, local), std::min<int64_t>(of_part.end, local)};
    rank.moe.runner().RunDown(rank.block, grouped, own, rank.moe.shape().hidden, rank.moe.pool(),
                              &middle, {.y = outputs.data()});
    rank.moe.dispatcher().BeginCombinePart(experts, {part, RowsOfExperts(grouped, own)}, &handle);
  }

  ExpertRows experts;
  Scratch<float> middle;
};

class CombinePartsTest : public ::testing::TestWithParam<ExchangeKind> {
 protected:
  static constexpr int64_t kHidden = 96;
  static constexpr int kExperts = 16, kTopK = 3;

  static TestLayer Layer() {
    return TestLayer(
        {.hidden = kHidden, .intermediate = 64, .num_experts = kExperts, .top_k = kTopK});
  }
  MoeOptions PartOptions() const { return Overlapped(GetParam().Options()); }
};

std::vector<ExchangeKind> KindsWithParts() {
  std::vector<ExchangeKind> kinds;
  for (const ExchangeKind& kind : kAllToAllKinds)
    if (CombinesInParts({.a2a_backend = kind.a2a})) kinds.push_back(kind);
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Kinds, CombinePartsTest, ::testing::ValuesIn(KindsWithParts()),
                         [](const auto& info) { return NameOf(info.param); });

TEST(CombinesInPartsTest, IsAPropertyOfTheBackend) {
  std::vector<std::string> names;
  for (const ExchangeKind& kind : KindsWithParts()) names.push_back(NameOf(kind));
  EXPECT_EQ(names.size(), 7u) << Joined(names, " ");
  EXPECT_FALSE(CombinesInParts({.a2a_backend = "none"}));
  EXPECT_FALSE(CombinesInParts({.a2a_backend = "fused"}));
}

// Outputs do not depend on whether a caller sends them in several parts or in one. Batches of both
// kinds run one after the other on the same buffers.
TEST_P(CombinePartsTest, PartsAndTheWholeGiveTheSameBits) {
  const TestLayer layer = Layer();
  std::vector<SomeTokens> batches;
  for (unsigned seed = 1; seed <= 4; ++seed)
    batches.push_back(SomeTokens::Random(9 * seed, kExperts, kTopK, kHidden, seed));
  const auto want = RunExchange(GetParam().Options(), layer, {4, 4}, batches);
  RunExchangeRanks(PartOptions(), layer, {4, 4}, 36, [&](const ExchangeRank& rank) {
    EXPECT_EQ(rank.moe.dispatcher().combine_parts(), 4);
    EXPECT_TRUE(rank.moe.splits_down());
    for (size_t i = 0; i < batches.size(); ++i) {
      const Range share = EvenPart(batches[i].topk.tokens, rank.ep, rank.ep_rank);
      BatchInParts batch(batches[i], share);
      const bool decode = i % 2 == 1;
      if (i == 2) {
        batch.RunAll(rank.moe, rank.block, decode);
      } else {
        batch.Begin(rank.moe, decode);
        batch.BeginCombine(rank);
        for (int part = 0; part < 4; ++part) batch.Part(rank, part);
        batch.End(rank.moe, rank.block);
      }
      EXPECT_TRUE(SameBits(batch.y.data(), want[i][0].data() + share.begin * kHidden,
                           share.size() * kHidden))
          << "batch " << i << " on rank " << rank.ep_rank;
    }
  });
}

TEST_P(CombinePartsTest, RanksOfSeveralHostsGetTheSameBits) {
  if (GetParam().a2a == "mooncake") GTEST_SKIP() << "ranks must share memory";
  const TestLayer layer = Layer();
  const std::vector batches = {SomeTokens::Random(21, kExperts, kTopK, kHidden, 1),
                               SomeTokens::Random(6, kExperts, kTopK, kHidden, 2)};
  const auto want = RunExchange(GetParam().Options({DType::kBF16}), layer, {1, 1}, batches);
  const auto run = [&](const ExchangeRank& rank) {
    for (size_t i = 0; i < batches.size(); ++i) {
      const Range share = EvenPart(batches[i].topk.tokens, rank.ep, rank.ep_rank);
      BatchInParts batch(batches[i], share);
      batch.Begin(rank.moe);
      batch.BeginCombine(rank);
      for (int part = 0; part < rank.moe.dispatcher().combine_parts(); ++part)
        batch.Part(rank, part);
      batch.End(rank.moe, rank.block);
      EXPECT_TRUE(SameBits(batch.y.data(), want[i][0].data() + share.begin * kHidden,
                           share.size() * kHidden))
          << "batch " << i << " on rank " << rank.ep_rank;
    }
  };
  RunExchangeRanks(Overlapped(GetParam().Options({DType::kBF16})), layer, {4, 4}, 21, run,
                   {std::chrono::seconds(60)}, /*ranks_per_host=*/2);
}

// Rank 1 stops before its last part. By then, rank 0 must have summed the token whose outputs are
// all in earlier parts.
TEST_P(CombinePartsTest, ATokenIsSummedWithoutWaitingForLaterParts) {
  const TestLayer layer = Layer();
  // Rank 0 has experts 0 to 7 and rank 1 has experts 8 to 15. Each part has two of them.
  const SomeTokens tokens({0, 8, 9, 7, 15, 8, -1, -1, -1, 1, 2, 3}, kTopK, kHidden, 1);
  const auto want = RunExchange(GetParam().Options(), layer, {1, 1}, {tokens})[0][0];
  MoeOptions options = PartOptions();
  options.elastic_timeout_seconds = 0.3;
  const auto run = [&](const ExchangeRank& rank) {
    BatchInParts batch(tokens, EvenPart(4, 2, rank.ep_rank));
    batch.Begin(rank.moe);
    batch.BeginCombine(rank);
    for (int part = 0; part < 3; ++part) batch.Part(rank, part);
    if (rank.ep_rank == 1) return;
    batch.Part(rank, 3);
    if (GetParam().a2a == "mooncake") {
      batch.End(rank.moe, rank.block);
    } else {
      EXPECT_THAT(ErrorOf([&] { batch.End(rank.moe, rank.block); }, ErrorKind::kTimeout),
                  HasSubstr("waited 0.3 s for rank 1"));
      EXPECT_TRUE(std::isnan(batch.y[kHidden]));
    }
    EXPECT_TRUE(SameBits(batch.y.data(), want.data(), kHidden));
  };
  RunExchangeRanks(options, layer, {2, 2}, 4, run, {std::chrono::milliseconds(300)});
}

}  // namespace
}  // namespace switchyard
