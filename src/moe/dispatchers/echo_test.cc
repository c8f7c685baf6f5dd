// Checks dispatched rows, with a runner that returns every row unchanged and counts rows.
#include <mutex>

#include "gtest/gtest.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

class EchoRunner : public Runner {
 public:
  // rows [E_local] receives the number of rows per expert.
  EchoRunner(RunnerLayout layout, std::vector<int64_t>* rows) : layout_(layout), rows_(rows) {}
  RunnerLayout layout() const override { return layout_; }
  bool Supports(WeightFormat) const override { return true; }
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool&,
           float* y) override {
    rows_->resize(block.experts.size());
    for (size_t e = 0; e < block.experts.size(); ++e) {
      const bool masked = layout_ == RunnerLayout::kMasked;
      const int64_t first = masked ? static_cast<int64_t>(e) * rows.capacity : rows.offsets[e];
      const int64_t count = masked ? rows.counts[e] : rows.offsets[e + 1] - first;
      (*rows_)[e] += count;
      for (int64_t r = first; r < first + count; ++r)
        std::copy_n(rows.x + (rows.row_ids ? rows.row_ids[r] : r) * rows.ldx, hidden,
                    y + r * hidden);
    }
  }

 private:
  RunnerLayout layout_;
  std::vector<int64_t>* rows_;
};

// Three replicas of expert 3.
const std::vector<int32_t> kPlacement = {3, 1, 4, 6, 5, 9, 2, 0, 8, 7, 3, 3};

TestLayer EchoLayer() {
  TestLayer layer({.hidden = 64, .intermediate = 32});
  layer.config.router.routed_scaling_factor = 1.0f;  // weights of a token sum to 1
  layer.config.placement = ExpertPlacement(layer.spec.num_experts, kPlacement);
  return layer;
}

// Observations over all ranks in one pass.
struct Observed {
  std::vector<int64_t> chosen;     // [num_experts] number of router selections
  std::vector<int64_t> computed;   // [num_experts] rows computed, over all replicas
  std::vector<int64_t> rank_rows;  // [tp] rows computed by all experts of a rank
  double error = 0;                // maximum difference between combined tokens and their inputs
};

Observed Observe(MoeOptions options, RunnerLayout layout, const MeshShape& mesh) {
  const TestLayer layer = EchoLayer();
  options.num_redundant_experts = 2;
  const TestPass pass = TestPass::Spread(23, mesh.dp, true, 1);
  const MoeShape shape = ShapeFor(layer, {pass});
  const int64_t hidden = layer.spec.hidden;
  Observed seen{std::vector<int64_t>(10), std::vector<int64_t>(10), std::vector<int64_t>(mesh.tp)};
  std::mutex mutex;
  RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& pool) {
    const Mesh& place = comm.mesh;
    std::vector<int64_t> rows;
    auto backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
    backends->runners.Add("echo",
                          {[&] { return std::make_unique<EchoRunner>(layout, &rows); }, ""});
    MoeOptions echo = options;
    echo.runner_backend = "echo";
    const MoeLayer moe(layer.config, layer.ShareOf(place, true),
                       MakeCpuMoe(echo, shape, comm, pool, backends));
    const int group = place.dp_rank();
    const std::vector<float> all = layer.Hidden(pass.total());
    const auto first = all.begin() + pass.FirstOf(group) * hidden;
    const std::vector<float> x(first, first + pass.tokens[group] * hidden);
    std::vector<float> y(x.size()), copies(x);
    std::vector<int32_t> ids(pass.tokens[group] * shape.top_k);
    moe.Forward(*moe.MakeState(), x.data(), {pass.tokens, pass.decoding, ids.data()}, y.data());

    // Each rank of a MoE-TP group returns the whole row instead of a partial sum. So a token's sum
    // is its row times the size of the MoE-TP group.
    for (float& value : copies) value *= static_cast<float>(place.moe_tp());
    const std::lock_guard lock(mutex);
    seen.error = std::max(seen.error, RelativeError(y, copies));
    if (place.attn_tp_rank() == 0)
      for (const int32_t id : ids) ++seen.chosen[id];
    const Range mine = ExpertsOfRank(shape.num_experts + 2, place.ep(), place.ep_rank());
    for (size_t e = 0; e < rows.size(); ++e) {
      if (place.moe_tp_rank() == 0) seen.computed[kPlacement[mine.begin + e]] += rows[e];
      seen.rank_rows[place.rank()] += rows[e];
    }
  });
  return seen;
}

TEST(EchoTest, ExpertsGetWhatTheRouterChoseAndTokensComeBack) {
  const std::vector<MeshShape> meshes = {{.tp = 4, .ep = 4},          {.tp = 4, .ep = 2},
                                         {.tp = 4, .ep = 1, .dp = 4}, {.tp = 6, .ep = 2, .dp = 3},
                                         {.tp = 8, .ep = 4, .dp = 2}, {.tp = 8, .ep = 8, .dp = 8}};
  const MoeBackends backends = BuiltinMoeBackends();
  for (const A2aChoice& choice : AllA2aChoices()) {
    if (backends.fused.FindIf(choice.a2a)) continue;  // a fused operator has no runner
    for (const RunnerLayout layout : {RunnerLayout::kContiguous, RunnerLayout::kMasked}) {
      for (const MeshShape& mesh : meshes) {
        SCOPED_TRACE(fmt::format("{} {} tp {} ep {} dp {}", choice.Describe(), Name(layout),
                                 mesh.tp, mesh.ep, mesh.dp));
        const Observed seen = Observe({.a2a_backend = choice.a2a,
                                       .deepep_mode = choice.mode,
                                       .max_dispatch_tokens_per_rank = 4},
                                      layout, mesh);
        EXPECT_EQ(seen.computed, seen.chosen);
        EXPECT_EQ(std::accumulate(seen.chosen.begin(), seen.chosen.end(), int64_t{0}), 23 * 3);
        EXPECT_LT(seen.error, 1e-6);
        const int moe_tp = mesh.tp / mesh.ep;
        for (int rank = 0; rank < mesh.tp; ++rank)  // ranks of a MoE-TP group get the same rows
          EXPECT_EQ(seen.rank_rows[rank], seen.rank_rows[rank - rank % moe_tp]);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
