// Tests with several ranks: recording of routing, and moves of experts.
#include <gtest/gtest.h>

#include "moe/cuda/router/test_observer.h"
#include "moe/cuda/test_rank.h"
#include "moe/placement/test_placements.h"

namespace switchyard::cuda {
namespace {

constexpr int kExperts = 12, kRedundant = 4, kLayerNumber = 2;

struct Ranks {
  MoeOptions options;
  MeshShape mesh;
  bool tokens = false;    // the observer records the routing of each token
  bool moving = false;    // experts move before each pass
  bool choosing = false;  // a RoundRobinChooser chooses replicas

  static TestLayer Layer() {
    TestLayer layer({.format = WeightFormat::kF32,
                     .hidden = 128,
                     .intermediate = 64,
                     .num_experts = kExperts,
                     .shared = true});
    layer.config.layer = kLayerNumber;
    layer.config.placement = ExpertPlacement::Trivial(kExperts, kRedundant);
    return layer;
  }
  std::vector<TestPass> Passes() const {
    std::vector<TestPass> passes = SpreadPasses({40, 3, 130, 0}, mesh.dp, /*decode=*/false);
    for (const TestPass& pass : SpreadPasses({1, 17}, mesh.dp, /*decode=*/true))
      passes.push_back(pass);
    TestPass mixed = TestPass::Spread(60, mesh.dp, /*decode=*/false, 5);
    for (int g = 0; g < mesh.dp; ++g) mixed.decoding[g] = mixed.tokens[g] / 3;
    passes.push_back(mixed);
    return passes;
  }

  struct Result {
    std::vector<float> out;                  // outputs of all passes
    std::vector<SummingObserver> observers;  // one for each pass
  };

  // All memory is allocated before any rank begins, for the reason given in moe_ranks_test.cc.
  Result OnRank(RankComm& comm) const {
    const TestLayer layer = Layer();
    const std::vector<TestPass> passes = Passes();
    TestRank rank(comm, DType::kF32, options, ShapeFor(layer, passes));
    SummingObserver observer;
    observer.tokens = tokens;
    RoundRobinChooser chooser;
    rank.backend->Observe(&observer);
    if (choosing) rank.backend->ChooseReplicasBy(&chooser);
    MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, ScattersTokens(options, mesh)),
                 rank.backend);
    rank.backend->ReserveMoves(1);
    const auto state = moe.MakeState();
    const int group = comm.mesh.dp_rank();
    const size_t most = ShapeFor(layer, passes).max_tokens * layer.spec.hidden * sizeof(float);
    const auto x = rank.device->Allocate(most), y = rank.device->Allocate(most);
    rank.device->Synchronize();
    comm.tp->Barrier("before the passes");
    Result result;
    for (size_t i = 0; i < passes.size(); ++i) {
      const TestPass& pass = passes[i];
      if (moving) {
        const auto placement =
            RandomPlacement(kExperts, kRedundant, static_cast<uint32_t>(100 + i));
        moe.SwitchPlacement(placement, ShardUnder(layer, comm.mesh, placement));
      }
      const auto hidden = layer.Hidden(pass.total(), pass.seed);
      std::vector<float> out(pass.tokens[group] * layer.spec.hidden);
      rank.device->CopyIn(x.get(), hidden.data() + pass.FirstOf(group) * layer.spec.hidden,
                          out.size() * sizeof(float));
      state->BeginPass(pass.tokens[group], 0);
      moe.Forward(*state, static_cast<const float*>(x.get()), {pass.tokens, pass.decoding},
                  static_cast<float*>(y.get()));
      state->EndPass();
      rank.device->CopyOut(out.data(), y.get(), out.size() * sizeof(float));
      state->ReportRouting(0);
      result.out.insert(result.out.end(), out.begin(), out.end());
      result.observers.push_back(observer);
      observer = {};
      observer.tokens = tokens;
    }
    rank.device->Synchronize();
    comm.tp->Barrier("after the passes");
    return result;
  }

  std::vector<Result> Run() const {
    std::vector<Result> results(mesh.tp);
    RunRankThreads(
        mesh.tp, RankComm::BytesPerRank(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
          const auto comm = RankComm::Create(std::move(arena), mesh, rank, {kRankTimeout});
          results[rank] = OnRank(*comm);
        });
    return results;
  }
};

MoeOptions Options(const char* a2a, const char* mode = "auto") {
  MoeOptions options;
  options.a2a_backend = a2a;
  options.deepep_mode = mode;
  options.num_redundant_experts = kRedundant;
  options.long_seq_per_round_tokens = 30;  // several rounds
  return options;
}

const std::vector<std::pair<MoeOptions, MeshShape>>& Layouts() {
  static const std::vector<std::pair<MoeOptions, MeshShape>> layouts = {
      {Options("none"), {.tp = 2, .ep = 2}},
      {Options("none"), {.tp = 4, .ep = 2, .dp = 2}},
      {Options("deepep"), {.tp = 2, .ep = 2}},
      {Options("deepep", "low_latency"), {.tp = 2, .ep = 2, .dp = 2}},
      {Options("deepep"), {.tp = 4, .ep = 2, .dp = 2}},
      {Options("deepep", "normal"), {.tp = 4, .ep = 4, .dp = 4}}};
  return layouts;
}

std::string Describe(const std::pair<MoeOptions, MeshShape>& layout) {
  const auto& [options, mesh] = layout;
  return fmt::format("{} {} tp {} ep {} dp {}", options.a2a_backend, options.deepep_mode, mesh.tp,
                     mesh.ep, mesh.dp);
}

TEST(CudaRoutingRanks, EveryTokenCountsOnce) {
  SKIP_WITHOUT_GPU();
  for (const auto& layout : Layouts())
    for (const bool moving : {false, true}) {
      SCOPED_TRACE(Describe(layout));
      const Ranks ranks{layout.first, layout.second, false, moving, /*choosing=*/moving};
      const auto results = ranks.Run();
      const auto passes = ranks.Passes();
      const TestLayer layer = Ranks::Layer();
      for (size_t i = 0; i < passes.size(); ++i) {
        const auto chosen =
            ChosenOnCpu(layer, layer.Hidden(passes[i].total(), passes[i].seed), passes[i].total());
        std::vector<int32_t> logical, physical, by_slot(kExperts);
        for (const auto& result : results) {
          SummingObserver::Add(result.observers[i].logical.at(kLayerNumber), logical);
          SummingObserver::Add(result.observers[i].physical.at(kLayerNumber), physical);
        }
        EXPECT_EQ(logical, CountsOf(chosen, kExperts)) << "pass " << i;
        // The slots of an expert together receive all of its rows.
        const auto placement =
            moving ? RandomPlacement(kExperts, kRedundant, static_cast<uint32_t>(100 + i))
                   : ExpertPlacement::Trivial(kExperts, kRedundant);
        for (int p = 0; p < kExperts + kRedundant; ++p)
          by_slot[placement.physical_to_logical()[p]] += physical[p];
        EXPECT_EQ(by_slot, logical) << "pass " << i;
      }
    }
}

TEST(CudaRoutingRanks, EveryTokenIsReportedOnce) {
  SKIP_WITHOUT_GPU();
  for (const auto& layout : Layouts()) {
    SCOPED_TRACE(Describe(layout));
    const Ranks ranks{layout.first, layout.second, /*tokens=*/true};
    const auto results = ranks.Run();
    const auto passes = ranks.Passes();
    const TestLayer layer = Ranks::Layer();
    const int k = layer.spec.top_k, attn_tp = ranks.mesh.tp / ranks.mesh.dp;
    for (size_t i = 0; i < passes.size(); ++i) {
      const auto chosen =
          ChosenOnCpu(layer, layer.Hidden(passes[i].total(), passes[i].seed), passes[i].total());
      int64_t reported = 0;
      for (int rank = 0; rank < ranks.mesh.tp; ++rank) {
        const auto& by_layer = results[rank].observers[i].rows;
        if (!by_layer.contains(kLayerNumber)) continue;
        const int64_t first = passes[i].FirstOf(rank / attn_tp);
        for (const auto& [row, ids] : by_layer.at(kLayerNumber)) {
          ++reported;
          const auto* want = chosen.data() + (first + row) * k;
          EXPECT_TRUE(std::equal(ids.begin(), ids.end(), want)) << "row " << row;
        }
      }
      EXPECT_EQ(reported, passes[i].total()) << "pass " << i;
    }
  }
}

TEST(CudaRoutingRanks, MovesAndReplicasChangeNoBit) {
  SKIP_WITHOUT_GPU();
  for (const auto& layout : Layouts()) {
    if (layout.first.a2a_backend == "none") continue;  // its sums depend on the ranks
    SCOPED_TRACE(Describe(layout));
    const auto still = Ranks{layout.first, layout.second}.Run();
    for (const bool choosing : {false, true}) {
      const auto moved = Ranks{layout.first, layout.second, false, /*moving=*/true, choosing}.Run();
      for (size_t rank = 0; rank < still.size(); ++rank)
        EXPECT_TRUE(kernels::SameBits(moved[rank].out, still[rank].out)) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace switchyard::cuda
