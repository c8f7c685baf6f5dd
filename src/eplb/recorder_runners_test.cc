// The recorder's counts equal the numbers of rows that reach the experts. Covers every all-to-all
// backend and its modes, both runner layouts, all kinds of meshes, and replicated or permuted
// experts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "eplb/batch_replicas.h"
#include "eplb/recorder.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

constexpr int kExperts = 10, kTopK = 3, kRedundant = 2;

// Rows of each of this rank's experts, over all calls.
using RowCounts = std::vector<int64_t>;

// Forwards to the runner of the given name and counts its input rows.
class CountingRunner : public Runner {
 public:
  CountingRunner(std::unique_ptr<Runner> runner, RowCounts* rows)
      : runner_(std::move(runner)), rows_(rows) {}
  RunnerLayout layout() const override { return runner_->layout(); }
  bool Supports(WeightFormat format) const override { return runner_->Supports(format); }
  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override {
    Count(block, rows);
    runner_->Run(block, rows, hidden, pool, y);
  }
  void RunTo(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
             DType dtype, std::span<std::byte* const> places) override {
    Count(block, rows);
    runner_->RunTo(block, rows, hidden, pool, dtype, places);
  }

 private:
  void Count(const ExpertBlock& block, const GroupedRows& rows) {
    rows_->resize(block.experts.size());
    for (size_t e = 0; e < rows_->size(); ++e)
      (*rows_)[e] += layout() == RunnerLayout::kMasked ? rows.counts[e]
                                                       : rows.offsets[e + 1] - rows.offsets[e];
  }

  const std::unique_ptr<Runner> runner_;
  RowCounts* const rows_;
};

// Counts the expert ids that are passed to a fused operator, because the operator does not expose
// the rows of its experts.
class CountingFused : public FusedExperts {
 public:
  CountingFused(std::unique_ptr<FusedExperts> fused, std::map<int32_t, int64_t>* counts)
      : fused_(std::move(fused)), counts_(counts) {}
  bool Supports(WeightFormat format) const override { return fused_->Supports(format); }
  int64_t MaxTokens(bool decode) const override { return fused_->MaxTokens(decode); }
  void Begin(const float* x, const TopK& topk, bool decode, DispatchHandle* handle) override {
    for (int64_t i = 0; i < topk.tokens * topk.k; ++i)
      if (topk.ids[i] >= 0) ++(*counts_)[topk.ids[i]];
    fused_->Begin(x, topk, decode, handle);
  }
  void End(const ExpertBlock& block, DispatchHandle* handle, float* y) override {
    fused_->End(block, handle, y);
  }

 private:
  const std::unique_ptr<FusedExperts> fused_;
  std::map<int32_t, int64_t>* const counts_;
};

struct Setting {
  A2aChoice choice;
  std::string runner;  // empty for fused operators
  MeshShape mesh;
  bool replicas = false, shared = false;
  EpDispatchAlgorithm dispatch = EpDispatchAlgorithm::kStatic;  // replica selection
};

// The rows that reached the experts of all ranks, and the recorders' counts.
struct Counted {
  RowCounts rows;                  // [slots]
  std::vector<int64_t> rank_rows;  // [world] rows of all slots of a rank; empty for fused operators
  std::vector<ExpertLoad> loads;   // results of mode stat, and of stat_approx if supported
};

std::shared_ptr<MoeBackends> CountingBackends(const Setting& c, RowCounts* rows,
                                              std::map<int32_t, int64_t>* counts) {
  auto backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
  if (c.runner.empty()) {
    FusedBackend counting = backends->fused.Find(c.choice.a2a);
    counting.make = [counts, make = counting.make](const DispatcherContext& context) {
      return std::make_unique<CountingFused>(make(context), counts);
    };
    backends->fused.Add(c.choice.a2a, counting);
  } else {
    const auto make = backends->runners.Find(c.runner).make;
    backends->runners.Add("counting",
                          {[=] { return std::make_unique<CountingRunner>(make(), rows); }, ""});
  }
  return backends;
}

MoeOptions OptionsOf(const Setting& c) {
  MoeOptions options{
      .a2a_backend = c.choice.a2a, .deepep_mode = c.choice.mode, .max_dispatch_tokens_per_rank = 4};
  options.num_redundant_experts = c.replicas ? kRedundant : 0;
  options.long_seq_per_round_tokens = 5;
  options.waterfill = c.shared;
  return options;
}

TestLayer LayerOf(const Setting& c) {
  TestLayer layer({.hidden = 32,
                   .intermediate = 64,
                   .num_experts = kExperts,
                   .top_k = kTopK,
                   .shared = c.shared});
  layer.config.layer = 1;
  layer.config.placement = c.replicas
                               ? ExpertPlacement(kExperts, {3, 1, 4, 6, 5, 9, 2, 0, 8, 7, 3, 3})
                               : ExpertPlacement::Trivial(kExperts);
  return layer;
}

// A prompt of several rounds, decoding, and a pass in which most ranks have no token.
std::vector<TestPass> PassesOf(const Setting& c) {
  return {TestPass::Spread(23, c.mesh.dp, false, 1), TestPass::Spread(9, c.mesh.dp, true, 2),
          TestPass::Spread(1, c.mesh.dp, true, 3)};
}

// Runs the passes of one rank through its layer, with a recorder of each supported mode. Returns
// the results of the recorders on rank 0.
std::vector<ExpertLoad> RunPassesWatched(const Setting& c, const TestLayer& layer,
                                         const std::shared_ptr<CpuMoeBackend>& runtime,
                                         RankComm& comm) {
  const ExpertRecorderShape shape{.layers = 2,
                                  .experts = kExperts,
                                  .top_k = kTopK,
                                  .redundant = runtime->options().num_redundant_experts,
                                  .shared_dispatched = c.shared};
  ExpertRecorder stat({.mode = "stat", .buffer_size = 1}, shape, comm);
  ExpertRecorder approx({.mode = "stat_approx", .buffer_size = 1}, shape, comm);
  std::vector<ExpertRecorder*> recorders = {&stat};
  if (!c.runner.empty()) recorders.push_back(&approx);
  Observers observers({recorders.begin(), recorders.end()});
  runtime->Observe(&observers);
  const bool scatters = ScattersTokens(runtime->options(), c.mesh);
  std::unique_ptr<BatchReplicas> chooser;
  if (c.dispatch != EpDispatchAlgorithm::kStatic)
    chooser = std::make_unique<BatchReplicas>(c.dispatch, comm.mesh, scatters);
  runtime->ChooseReplicasBy(chooser.get());
  const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, scatters), runtime);
  const auto state = moe.MakeState();

  for (ExpertRecorder* recorder : recorders) recorder->Start();
  const int group = comm.mesh.dp_rank();
  for (const TestPass& pass : PassesOf(c)) {
    const std::vector<float> hidden = layer.Hidden(pass.total(), pass.seed);
    std::vector<float> out(pass.tokens[group] * layer.spec.hidden);
    for (ExpertRecorder* recorder : recorders) recorder->BeginPass(0, pass.tokens[group]);
    moe.Forward(*state, hidden.data() + pass.FirstOf(group) * layer.spec.hidden,
                {pass.tokens, pass.decoding}, out.data());
    for (ExpertRecorder* recorder : recorders) recorder->EndPass(0, {});
  }
  std::vector<ExpertLoad> loads;
  for (ExpertRecorder* recorder : recorders) loads.push_back(recorder->Load());
  return loads;
}

Counted Count(const Setting& c) {
  const MoeOptions options = OptionsOf(c);
  const TestLayer layer = LayerOf(c);
  const MoeShape shape = ShapeFor(layer, PassesOf(c));
  const ExpertMap map(kExperts + options.num_redundant_experts, c.mesh.ep, c.shared);
  Counted counted{RowCounts(map.size()), std::vector<int64_t>(c.mesh.tp), {}};
  std::mutex mutex;
  RunMoeRanks(options, shape, c.mesh, [&](RankComm& comm, ThreadPool& pool) {
    RowCounts rows;
    std::map<int32_t, int64_t> counts;
    MoeOptions counting = options;
    if (!c.runner.empty()) counting.runner_backend = "counting";
    const auto runtime =
        MakeCpuMoe(counting, shape, comm, pool, CountingBackends(c, &rows, &counts));
    const std::vector<ExpertLoad> loads = RunPassesWatched(c, layer, runtime, comm);

    const std::lock_guard lock(mutex);
    const Mesh& mesh = comm.mesh;
    if (mesh.rank() == 0) counted.loads = loads;
    for (int32_t p = 0; p < map.size(); ++p)
      if (map.Owner(p) == mesh.ep_rank() && !rows.empty()) {
        counted.rank_rows[mesh.rank()] += rows[map.LocalId(p)];
        if (mesh.moe_tp_rank() == 0) counted.rows[p] += rows[map.LocalId(p)];
      }
    if (mesh.moe_tp_rank() == 0)  // ranks of a MoE-TP group send the same tokens
      for (const auto& [place, count] : counts) counted.rows[place] += count;
  });
  return counted;
}

// The result that a recorder must have if slots received these rows.
ExpertLoad LoadOf(const Setting& c, const RowCounts& rows) {
  const ExpertPlacement placement = LayerOf(c).config.placement;
  const ExpertMap map(placement.num_physical(), c.mesh.ep, c.shared);
  ExpertLoad load;
  load.logical_count.resize(2 * kExperts);
  load.rank_count.resize(2 * c.mesh.ep);
  for (int32_t p = 0; p < map.size(); ++p) {
    load.rank_count[c.mesh.ep + map.Owner(p)] += rows[p];
    if (p < placement.num_physical())
      load.logical_count[kExperts + placement.physical_to_logical()[p]] += rows[p];
  }
  return load;
}

void Check(const Setting& c) {
  SCOPED_TRACE(fmt::format("{} {} tp {} ep {} dp {}{}{}, dispatch {}", c.choice.Describe(),
                           c.runner, c.mesh.tp, c.mesh.ep, c.mesh.dp, c.replicas ? " replicas" : "",
                           c.shared ? " shared" : "", static_cast<int>(c.dispatch)));
  const Counted counted = Count(c);
  const ExpertLoad want = LoadOf(c, counted.rows);
  ASSERT_EQ(counted.loads.size(), c.runner.empty() ? 1u : 2u);
  for (const ExpertLoad& load : counted.loads) {
    EXPECT_EQ(load.logical_count, want.logical_count);
    EXPECT_EQ(load.rank_count, want.rank_count);
  }
  EXPECT_EQ(std::accumulate(want.logical_count.begin(), want.logical_count.end(), int64_t{0}),
            (23 + 9 + 1) * kTopK);
  EXPECT_EQ(std::accumulate(want.rank_count.begin(), want.rank_count.end(), int64_t{0}),
            (23 + 9 + 1) * (kTopK + (c.shared ? 1 : 0)));
  const int moe_tp = c.mesh.tp / c.mesh.ep;
  for (int rank = 0; rank < c.mesh.tp; ++rank)  // ranks of a MoE-TP group get the same rows
    EXPECT_EQ(counted.rank_rows[rank], counted.rank_rows[rank - rank % moe_tp]);
}

class RecorderAndRunners : public ::testing::TestWithParam<A2aChoice> {};

TEST_P(RecorderAndRunners, CountTheSameRows) {
  const bool fused = BuiltinMoeBackends().fused.FindIf(GetParam().a2a) != nullptr;
  std::vector<std::string> runners = {"grouped_mlp", "masked_mlp"};
  if (fused) runners = {""};
  for (const std::string& runner : runners) {
    for (const MeshShape& mesh :
         {MeshShape{.tp = 1}, MeshShape{.tp = 4, .ep = 4}, MeshShape{.tp = 4, .ep = 2},
          MeshShape{.tp = 4, .ep = 1, .dp = 4}, MeshShape{.tp = 6, .ep = 2, .dp = 3},
          MeshShape{.tp = 4, .ep = 4, .dp = 2}, MeshShape{.tp = 4, .ep = 4, .dp = 4}})
      for (const bool replicas : {false, true}) Check({GetParam(), runner, mesh, replicas});
    for (const EpDispatchAlgorithm dispatch :
         {EpDispatchAlgorithm::kStatic, EpDispatchAlgorithm::kDynamic,
          EpDispatchAlgorithm::kBalanced}) {
      Setting setting{GetParam(), runner, {.tp = 4, .ep = 4}, /*replicas=*/true};
      setting.shared = GetParam().a2a != "none";
      setting.dispatch = dispatch;
      Check(setting);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecorderAndRunners, ::testing::ValuesIn(AllA2aChoices()),
                         [](const auto& info) {
                           std::string name = info.param.Describe();
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace switchyard
