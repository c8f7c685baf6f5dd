// Placement invariance of the all-to-all backends (not of `none`), with combine by slot and MoE-TP
// 1: a layer's output is bit-identical for every placement, backend, number of ranks and batch
// composition.
#include <string>

#include "gtest/gtest.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

const std::vector<int64_t> kTotals = {24, 1, 7};

TestLayer::Spec Spec() {
  return {.format = WeightFormat::kBF16, .hidden = 96, .intermediate = 64, .shared = true};
}

MoeOptions Options(const A2aChoice& choice, DType row_dtype = DType::kBF16) {
  return {.a2a_backend = choice.a2a, .deepep_mode = choice.mode, .row_dtype = row_dtype};
}

// Outputs on one rank with backend `none`, which is the simplest path.
std::vector<float> OneRank(const TestLayer& layer, const MoeOptions& options,
                           const std::vector<int64_t>& totals = kTotals) {
  MoeOptions plain = options;
  plain.a2a_backend = options.waterfill ? "deepep" : "none";
  plain.runner_backend = "auto";
  plain.num_redundant_experts = 0;
  TestLayer unmoved = layer;
  unmoved.config.placement = {};
  return RunPasses(unmoved, plain, {}, SpreadPasses(totals, 1, false));
}

// Backends that sum over slots. `none` is not one of them: on several ranks it sums over ranks.
std::vector<A2aChoice> AllToAll() {
  std::vector<A2aChoice> choices = AllA2aChoices();
  std::erase_if(choices, [](const A2aChoice& choice) { return choice.a2a == "none"; });
  return choices;
}

// Expects bit-identical outputs on 1, 2, 4 and 8 ranks, with one attention group and with one per
// rank, as prompts and as decode steps.
void ExpectBits(const TestLayer& layer, const MoeOptions& options, const std::vector<float>& want,
                const std::vector<int>& worlds = {1, 2, 4, 8}) {
  for (const int ranks : worlds) {
    for (const int dp : {1, ranks}) {
      for (const bool decode : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} on {} ranks, dp {}, decode {}", options.a2a_backend,
                                 options.deepep_mode, ranks, dp, decode));
        EXPECT_TRUE(SameBits(RunPasses(layer, options, {.tp = ranks, .ep = ranks, .dp = dp},
                                       SpreadPasses(kTotals, dp, decode)),
                             want));
      }
    }
  }
}

TEST(PlacementInvarianceTest, OverRanksGroupsBackendsAndModes) {
  const TestLayer layer(Spec());
  for (const DType row_dtype : {DType::kF32, DType::kBF16}) {
    const auto want = OneRank(layer, Options({"none", "auto"}, row_dtype));
    for (const A2aChoice& choice : AllToAll()) ExpectBits(layer, Options(choice, row_dtype), want);
  }
}

TEST(PlacementInvarianceTest, WithScaledInputs) {
  TestLayer::Spec spec = Spec();
  spec.top_k = 1;
  spec.scales_input = true;
  const TestLayer layer(spec);
  for (const DType row_dtype : {DType::kF32, DType::kBF16}) {
    const auto want = OneRank(layer, Options({"none", "auto"}, row_dtype));
    for (const A2aChoice& choice : AllToAll())
      ExpectBits(layer, Options(choice, row_dtype), want, {1, 4});
  }
}

TEST(PlacementInvarianceTest, WithExpertsWithoutComputation) {
  TestLayer::Spec spec = Spec();
  spec.zero_experts = 5;
  const TestLayer layer(spec);
  for (const DType row_dtype : {DType::kF32, DType::kBF16}) {
    const auto want = OneRank(layer, Options({"none", "auto"}, row_dtype));
    for (const A2aChoice& choice : AllToAll())
      ExpectBits(layer, Options(choice, row_dtype), want, {1, 4});
  }
}

TEST(PlacementInvarianceTest, WithRowsAsFp8) {
  const TestLayer layer(Spec());
  MoeOptions options;
  options.row_dtype = DType::kBF16;
  options.dispatcher_output_dtype = "fp8";
  const auto want = OneRank(layer, options);
  for (const A2aChoice& choice : AllToAll()) {
    options.a2a_backend = choice.a2a;
    options.deepep_mode = choice.mode;
    ExpectBits(layer, options, want, {1, 4});
  }
}

TEST(PlacementInvarianceTest, OverRunners) {
  const TestLayer layer(Spec());
  const MoeBackends backends = BuiltinMoeBackends();
  const auto want = OneRank(layer, Options({"none", "auto"}));
  for (const auto& [runner, backend] : backends.runners.all()) {
    for (const A2aChoice& choice : AllToAll()) {
      if (backends.fused.FindIf(choice.a2a)) continue;
      MoeOptions options = Options(choice);
      options.runner_backend = runner;
      ExpectBits(layer, options, want, {2});
    }
  }
}

TEST(PlacementInvarianceTest, OverRounds) {
  const TestLayer layer(Spec());
  const auto want = OneRank(layer, Options({"none", "auto"}));
  for (const A2aChoice& choice : AllToAll()) {
    for (const int round : {1, 3}) {
      MoeOptions options = Options(choice);
      options.max_dispatch_tokens_per_rank = round;
      options.long_seq_per_round_tokens = round;
      ExpectBits(layer, options, want, {1, 2, 4});
    }
  }
}

TEST(PlacementInvarianceTest, OverPlacementsAndReplicas) {
  TestLayer layer(Spec());
  const auto want = OneRank(layer, Options({"none", "auto"}));
  kernels::Random random(5);
  for (const int redundant : {0, 2, 7}) {
    // A map with every expert at least once, in random order.
    std::vector<int32_t> map = random.Shuffled(layer.spec.num_experts);
    for (int i = 0; i < redundant; ++i)
      map.insert(map.begin() + random.Below(static_cast<int64_t>(map.size())),
                 static_cast<int32_t>(random.Below(layer.spec.num_experts)));
    layer.config.placement = ExpertPlacement(layer.spec.num_experts, map);
    for (const A2aChoice& choice : AllToAll()) {
      MoeOptions options = Options(choice);
      options.num_redundant_experts = redundant;
      SCOPED_TRACE(fmt::format("{} redundant", redundant));
      ExpectBits(layer, options, want, {1, 4});
    }
  }
}

TEST(PlacementInvarianceTest, OfTheDispatchedSharedExpert) {
  const TestLayer layer(Spec());
  MoeOptions options = Options({"deepep", "normal"});
  options.waterfill = true;
  const auto want = OneRank(layer, options);
  for (const A2aChoice& choice : AllToAll()) {
    options.a2a_backend = choice.a2a;
    options.deepep_mode = choice.mode;
    ExpectBits(layer, options, want);
  }
}

// One pass of 64 tokens, and the same tokens split into passes of other shapes.
TEST(PlacementInvarianceTest, OverSplitsOfABatch) {
  const TestLayer layer(Spec());
  const int64_t tokens = 64, hidden = layer.spec.hidden;
  const std::vector<float> x = layer.Hidden(tokens);
  const MeshShape mesh{.tp = 4, .ep = 4, .dp = 2};
  for (const A2aChoice& choice : AllToAll()) {
    SCOPED_TRACE(choice.Describe());
    const MoeOptions options = Options(choice);
    const MoeShape shape = layer.Shape(tokens);
    RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& pool) {
      const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                         MakeCpuMoe(options, shape, comm, pool));
      const auto state = moe.MakeState();
      // Both groups process all tokens in pieces of `step`, some of them decode.
      const auto run = [&](int64_t step, int64_t decoding) {
        std::vector<float> out(x.size(), NAN);
        for (int64_t begin = 0; begin < tokens; begin += step) {
          const int64_t n = std::min(step, tokens - begin);
          const int64_t counts[] = {n, n}, decode_counts[] = {std::min(n, decoding), 0};
          moe.Forward(*state, x.data() + begin * hidden, {counts, decode_counts},
                      out.data() + begin * hidden);
        }
        return out;
      };
      const std::vector<float> at_once = run(tokens, 0);
      EXPECT_TRUE(SameBits(run(1, 1), at_once));
      EXPECT_TRUE(SameBits(run(7, 3), at_once));
      EXPECT_TRUE(SameBits(run(tokens, 40), at_once));
    });
  }
}

}  // namespace
}  // namespace switchyard
