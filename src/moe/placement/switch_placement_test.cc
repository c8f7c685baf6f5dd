// Experts move between two passes. Outputs must stay bit-identical (equal within rounding with
// `none` or MoE-TP), and the previous experts must be freed.
#include <string>

#include "gtest/gtest.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/placement/test_placements.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

constexpr int kRanks = 4, kRedundant = 6;

TestLayer MakeLayer(bool biases = false) {
  TestLayer layer({.format = WeightFormat::kBF16,
                   .hidden = 96,
                   .intermediate = 64,
                   .clamped_with_biases = biases,
                   .shared = true});
  layer.config.placement = ExpertPlacement::Trivial(layer.spec.num_experts, kRedundant);
  return layer;
}

// Outputs of decode passes and other passes. With `moving`, the placement changes before each pass.
std::vector<float> OutputsOf(const TestLayer& layer, const MoeOptions& options,
                             const MeshShape& mesh, bool moving, bool in_turns = false) {
  constexpr int kPasses = 12;
  const MoeShape shape = layer.Shape(9);
  std::vector<std::vector<float>> outs(mesh.tp);
  RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& pool) {
    const auto runtime = MakeCpuMoe(options, shape, comm, pool);
    RoundRobinChooser chooser;
    if (in_turns) runtime->ChooseReplicasBy(&chooser);
    MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, ScattersTokens(options, mesh)), runtime);
    const auto state = moe.MakeState();
    for (int pass = 0; pass < kPasses; ++pass) {
      if (moving) {
        const auto placement = RandomPlacement(layer.spec.num_experts, kRedundant, 100 + pass);
        moe.SwitchPlacement(placement, ShardUnder(layer, comm.mesh, placement));
      }
      const int64_t tokens = 1 + pass % 9, decoding = pass % 2 == 0 ? tokens : tokens / 2;
      const std::vector<float> hidden = layer.Hidden(tokens, pass);
      std::vector<float> out(hidden.size(), NAN);
      moe.Forward(*state, hidden.data(), {{&tokens, 1}, {&decoding, 1}}, out.data());
      auto& all = outs[comm.mesh.rank()];
      all.insert(all.end(), out.begin(), out.end());
    }
  });
  for (const auto& out : outs) EXPECT_TRUE(SameBits(out, outs[0]));
  return outs[0];
}

MoeOptions Options(const A2aChoice& choice) {
  MoeOptions options{
      .a2a_backend = choice.a2a, .deepep_mode = choice.mode, .row_dtype = DType::kBF16};
  options.num_redundant_experts = kRedundant;
  return options;
}

TEST(SwitchPlacementTest, MovesNoBitWithAnyAllToAll) {
  for (const bool biases : {false, true}) {
    const TestLayer layer = MakeLayer(biases);
    for (const A2aChoice& choice : AllA2aChoices()) {
      if (choice.a2a == "none") continue;  // its sums depend on the ranks
      SCOPED_TRACE(choice.Describe());
      const MeshShape mesh{.tp = kRanks, .ep = kRanks};
      const auto still = OutputsOf(layer, Options(choice), mesh, false);
      EXPECT_TRUE(SameBits(OutputsOf(layer, Options(choice), mesh, true), still));
      EXPECT_TRUE(
          SameBits(OutputsOf(layer, Options(choice), mesh, true, /*in_turns=*/true), still));
    }
  }
}

TEST(SwitchPlacementTest, AgreesWithinRoundingWhereRanksAddUp) {
  const TestLayer layer = MakeLayer();
  for (const MeshShape& mesh : {MeshShape{.tp = 4, .ep = 4}, MeshShape{.tp = 4, .ep = 2}}) {
    const MoeOptions none = Options({"none", "auto"});
    const auto still = OutputsOf(layer, none, mesh, false);
    EXPECT_LT(RelativeError(OutputsOf(layer, none, mesh, true), still), 1e-5);
    EXPECT_LT(RelativeError(OutputsOf(layer, none, mesh, true, /*in_turns=*/true), still), 1e-5);
  }
  // MoE-TP slices: the ranks of an MoE-TP group choose the same replicas.
  const MoeOptions deepep = Options({"deepep", "normal"});
  const MeshShape mesh{.tp = 4, .ep = 2};
  EXPECT_LT(RelativeError(OutputsOf(layer, deepep, mesh, true, true),
                          OutputsOf(layer, deepep, mesh, false)),
            1e-5);
}

TEST(SwitchPlacementTest, KeepsADispatchedSharedExpert) {
  const TestLayer layer = MakeLayer();
  MoeOptions options = Options({"deepep", "normal"});
  options.waterfill = true;
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  const auto still = OutputsOf(layer, options, mesh, false);
  EXPECT_TRUE(SameBits(OutputsOf(layer, options, mesh, true), still));
  EXPECT_TRUE(SameBits(OutputsOf(layer, options, mesh, true, true), still));
}

TEST(SwitchPlacementTest, ThousandSwitchesLeaveNothingBehind) {
  const TestLayer layer = MakeLayer();
  const MoeOptions options = Options({"deepep", "normal"});
  const MoeShape shape = layer.Shape(1);
  RunMoeRanks(options, shape, {}, [&](RankComm& comm, ThreadPool& pool) {
    MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                 MakeCpuMoe(options, shape, comm, pool));
    const auto memory = std::make_shared<int>(0);
    for (int i = 0; i < 1000; ++i) {
      const auto placement = RandomPlacement(layer.spec.num_experts, kRedundant, i);
      std::vector<OwnedExpert> experts = ShardUnder(layer, comm.mesh, placement);
      for (OwnedExpert& expert : experts)
        expert.owner = expert.weights.gate.owner = expert.weights.up.owner =
            expert.weights.down.owner = memory;
      moe.SwitchPlacement(placement, std::move(experts));
      // Only the 16 current experts hold references to the weights: each by its owner and three
      // views.
      ASSERT_EQ(memory.use_count(), 1 + 4 * 16);
    }
    const auto old = moe.SwitchPlacement(layer.config.placement,
                                         ShardUnder(layer, comm.mesh, layer.config.placement));
    EXPECT_EQ(old.size(), 16u);
    EXPECT_EQ(memory.use_count(), 1 + 4 * 16);  // `old` holds references to the previous experts
  });
}

}  // namespace
}  // namespace switchyard
