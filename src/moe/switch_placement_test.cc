// Experts move between two passes: outputs stay bit-identical, and the previous experts are freed.
#include <string>

#include "gtest/gtest.h"
#include "moe/cpu_backend.h"
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

// Every expert once and some more often, at random places; the same on every rank.
ExpertPlacement RandomPlacement(int experts, int redundant, uint32_t seed) {
  kernels::Random random(seed);
  std::vector<int32_t> map = random.Shuffled(experts);
  for (int i = 0; i < redundant; ++i)
    map.insert(map.begin() + random.Below(static_cast<int64_t>(map.size())),
               static_cast<int32_t>(random.Below(experts)));
  return {experts, map};
}

// This rank's experts under `placement`.
std::vector<OwnedExpert> ShardUnder(const TestLayer& layer, const Mesh& mesh,
                                    const ExpertPlacement& placement) {
  const ExpertRange range = ExpertsOfRank(placement.num_physical(), mesh.ep(), mesh.ep_rank());
  std::vector<OwnedExpert> experts;
  for (int p = range.begin; p < range.end; ++p)
    experts.push_back({TestLayer::Slice(layer.whole.experts[placement.physical_to_logical()[p]],
                                        mesh.moe_tp(), mesh.moe_tp_rank()),
                       nullptr});
  return experts;
}

// Sends the t-th selection of an expert to its replicas in round-robin order.
class RoundRobinChooser : public ReplicaChooser {
 public:
  void OnPlacement(int, const ExpertPlacement& placement) override {
    places_.assign(placement.num_logical(), {});
    for (int32_t p = 0; p < placement.num_physical(); ++p)
      places_[placement.physical_to_logical()[p]].push_back(p);
    next_.resize(places_.size());
  }
  void Choose(int, const TopK& logical, TopK* physical) override {
    *physical = logical;
    for (int32_t& id : physical->ids)
      if (id >= 0) id = places_[id][next_[id]++ % places_[id].size()];
  }

 private:
  std::vector<std::vector<int32_t>> places_;
  std::vector<size_t> next_;
};

// Outputs of decode and other passes; with `moving` the placement changes before each.
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
      if (choice.a2a == "none") continue;  // sums by rank
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
  // MoE-TP slices: the ranks of a group choose alike.
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
      // Only the 16 current experts hold a reference: their owner and three views each.
      ASSERT_EQ(memory.use_count(), 1 + 4 * 16);
    }
    const auto old = moe.SwitchPlacement(layer.config.placement,
                                         ShardUnder(layer, comm.mesh, layer.config.placement));
    EXPECT_EQ(old.size(), 16u);
    EXPECT_EQ(memory.use_count(), 1 + 4 * 16);  // `old` holds them
  });
}

}  // namespace
}  // namespace switchyard
