#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "moe/cuda/test_rank.h"

namespace switchyard::cuda {
namespace {

struct Ranks {
  const TestLayer& layer;
  DType dtype = DType::kF32;
  MoeOptions options;
  std::vector<TestPass> passes;
  DeviceMoeHosts hosts = {};
  int down_parts = 0;

  // Outputs of the rank's group for all passes. All memory is allocated before any rank begins. The
  // reason is that an allocation synchronizes with the whole GPU, where a peer's kernel may be
  // waiting for this rank.
  std::vector<float> OnRank(RankComm& comm) const {
    TestRank rank(comm, dtype, options, ShapeFor(layer, passes), hosts, down_parts);
    const MoeLayer moe(layer.config,
                       layer.ShareOf(comm.mesh, ScattersTokens(options, comm.mesh.shape())),
                       rank.backend);
    std::vector<std::unique_ptr<MoeState>> states;
    for (int slot = 0; slot < options.passes; ++slot) {
      states.push_back(moe.MakeState(slot));
      states.back()->overlaps = options.passes > 1;
    }
    const int group = comm.mesh.dp_rank();
    std::vector<std::vector<float>> outs;
    std::vector<std::shared_ptr<void>> xs, ys, routers;
    for (const TestPass& pass : passes) {
      const auto hidden = layer.Hidden(pass.total(), pass.seed);
      const float* x = hidden.data() + pass.FirstOf(group) * layer.spec.hidden;
      outs.emplace_back(pass.tokens[group] * layer.spec.hidden, NAN);
      const size_t bytes = outs.back().size() * sizeof(float);
      rank.device->CopyIn(xs.emplace_back(rank.device->Allocate(bytes + 16)).get(), x, bytes);
      rank.device->CopyIn(ys.emplace_back(rank.device->Allocate(bytes + 16)).get(),
                          outs.back().data(), bytes);
      const std::vector<float> rows = layer.RouterRows({x, outs.back().size()});
      rank.device->CopyIn(routers.emplace_back(rank.device->Allocate(rows.size() * 4 + 16)).get(),
                          rows.data(), rows.size() * sizeof(float));
    }
    rank.device->Synchronize();
    comm.tp->Barrier("before the passes");
    for (size_t i = 0; i < passes.size(); i += states.size()) {
      std::vector<MoeState*> staged;  // states whose stages run interleaved
      for (size_t slot = 0; slot < states.size() && i + slot < passes.size(); ++slot) {
        const TestPass& pass = passes[i + slot];
        const auto* x = static_cast<const float*>(xs[i + slot].get());
        auto* y = static_cast<float*>(ys[i + slot].get());
        MoeTokens tokens = {pass.tokens, pass.decoding};
        if (layer.spec.router_width > 0)
          tokens.router_rows = static_cast<const float*>(routers[i + slot].get());
        if (states.size() > 1 && moe.StartOneRound(*states[slot], x, tokens, y))
          staged.push_back(states[slot].get());
        else
          moe.Forward(*states[slot], x, tokens, y);
      }
      RunInterleaved(moe, staged);
    }
    std::vector<float> all;
    for (size_t i = 0; i < passes.size(); ++i) {
      rank.device->CopyOut(outs[i].data(), ys[i].get(), outs[i].size() * sizeof(float));
      all.insert(all.end(), outs[i].begin(), outs[i].end());
    }
    rank.device->Synchronize();
    comm.tp->Barrier("after the passes");
    return all;
  }

  // Runs the stages in the order of two-batch overlap in prefill, with the shared expert during
  // combine.
  static void RunInterleaved(const MoeLayer& moe, std::span<MoeState* const> states) {
    for (MoeState* s : states) {
      moe.Route(*s);
      moe.BeginDispatch(*s);
    }
    for (MoeState* s : states) {
      moe.EndDispatch(*s);
      moe.PrePermute(*s);
      moe.RunExperts(*s);
      moe.PostPermute(*s);
      moe.BeginCombine(*s);
      moe.RunDown(*s);
    }
    for (MoeState* s : states) {
      moe.RunShared(*s);
      moe.EndCombine(*s);
      moe.Scatter(*s);
    }
  }

  std::vector<float> On(const MeshShape& mesh) const {
    std::vector<std::vector<float>> outs(mesh.tp), groups;
    RunRankThreads(
        mesh.tp, RankComm::BytesPerRank(mesh), [&](int rank, std::shared_ptr<SharedArena> arena) {
          const auto comm = RankComm::Create(std::move(arena), mesh, rank, {kRankTimeout});
          outs[rank] = OnRank(*comm);
        });
    const int attn_tp = mesh.tp / mesh.dp;
    for (int rank = 0; rank < mesh.tp; ++rank) {
      if (rank % attn_tp == 0) groups.push_back(outs[rank]);
      EXPECT_TRUE(kernels::SameBits(groups.back(), outs[rank])) << "rank " << rank;
    }
    return JoinGroups(passes, layer.spec.hidden, groups);
  }
};

std::string Describe(const MeshShape& mesh, const MoeOptions& options) {
  return fmt::format("tp {} ep {} dp {} {} {}", mesh.tp, mesh.ep, mesh.dp, options.a2a_backend,
                     options.deepep_mode);
}

TestLayer LayerFor(WeightFormat format, bool shared = true) {
  return TestLayer({.format = format,
                    .activation = format == WeightFormat::kFp8Block ? ActivationFormat::kFp8Group
                                                                    : ActivationFormat::kNone,
                    .hidden = 256,
                    .intermediate = 256,
                    .num_experts = 12,
                    .shared = shared});
}

MoeOptions DeepEp(const char* mode) {
  MoeOptions options;
  options.a2a_backend = "deepep";
  options.deepep_mode = mode;
  return options;
}

// Passes of all sizes: many tokens, few, none in some groups; decode, prefill and mixed.
std::vector<TestPass> Passes(int dp) {
  std::vector<TestPass> passes = SpreadPasses({40, 3, 130}, dp, /*decode=*/false);
  for (const TestPass& pass : SpreadPasses({1, 17}, dp, /*decode=*/true)) passes.push_back(pass);
  TestPass mixed = TestPass::Spread(60, dp, /*decode=*/false, 5);
  for (int g = 0; g < dp; ++g) mixed.decoding[g] = mixed.tokens[g] / 3;
  passes.push_back(mixed);
  return passes;
}

void ExpectSameBits(const TestLayer& layer, DType dtype, MoeOptions options,
                    const std::vector<float>& want, const MeshShape& mesh,
                    const DeviceMoeHosts& hosts = {}) {
  SCOPED_TRACE(::testing::Message() << Describe(mesh, options) << " " << Name(layer.spec.format)
                                    << ", " << hosts.ranks_per_host << " ranks on a host");
  EXPECT_TRUE(
      kernels::SameBits(Ranks{layer, dtype, options, Passes(mesh.dp), hosts}.On(mesh), want));
}

// Compares backend `none` with the reference.
void ExpectNearTheReference(const TestLayer& layer, const MeshShape& mesh) {
  const MoeOptions none;
  SCOPED_TRACE(Describe(mesh, none));
  const Ranks ranks{layer, DType::kF32, none, Passes(mesh.dp)};
  EXPECT_LT(RelativeError(ranks.On(mesh), ReferencePasses(layer, none, ranks.passes)), 1e-5);
}

TEST(CudaMoeRanks, RankCountModeAndPlacementChangeNoBit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    TestLayer layer = LayerFor(format);
    const DType dtype = format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
    MoeOptions single = DeepEp("auto");
    single.fp8_group_activations = format == WeightFormat::kFp8Block;
    const auto want = Ranks{layer, dtype, single, Passes(1)}.On({});
    for (const char* mode : {"normal", "low_latency", "auto"}) {
      MoeOptions options = single;
      options.deepep_mode = mode;
      layer.config.placement = {};
      ExpectSameBits(layer, dtype, options, want, {.tp = 2, .ep = 2});
      ExpectSameBits(layer, dtype, options, want, {.tp = 4, .ep = 4, .dp = 4});
      options.num_redundant_experts = 2;
      layer.config.placement = ExpertPlacement(12, {11, 3, 0, 1, 10, 2, 8, 7, 6, 5, 9, 4, 0, 11});
      ExpectSameBits(layer, dtype, options, want, {.tp = 4, .ep = 4, .dp = 2});
    }
  }
}

TEST(CudaMoeRanks, ScaledInputsChangeNoBitAndAreNearTheReference) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer({.hidden = 256,
                         .intermediate = 256,
                         .num_experts = 12,
                         .top_k = 1,
                         .shared = true,
                         .scales_input = true});
  const auto want = Ranks{layer, DType::kF32, DeepEp("auto"), Passes(1)}.On({});
  for (const char* mode : {"normal", "low_latency"}) {
    ExpectSameBits(layer, DType::kF32, DeepEp(mode), want, {.tp = 2, .ep = 2});
    ExpectSameBits(layer, DType::kF32, DeepEp(mode), want, {.tp = 2, .ep = 2, .dp = 2});
  }
  ExpectNearTheReference(layer, {.tp = 2, .ep = 2});
  ExpectNearTheReference(layer, {.tp = 2, .ep = 2, .dp = 2});
}

TEST(CudaMoeRanks, ExpertsWithoutComputationChangeNoBitAndAreNearTheReference) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer(
      {.hidden = 256, .intermediate = 256, .num_experts = 12, .shared = true, .zero_experts = 5});
  const auto want = Ranks{layer, DType::kF32, DeepEp("auto"), Passes(1)}.On({});
  for (const char* mode : {"normal", "low_latency"}) {
    MoeOptions options = DeepEp(mode);
    ExpectSameBits(layer, DType::kF32, options, want, {.tp = 2, .ep = 2});
    options.long_seq_per_round_tokens = 9;
    options.max_dispatch_tokens_per_rank = 4;
    ExpectSameBits(layer, DType::kF32, options, want, {.tp = 2, .ep = 2, .dp = 2});
  }
  ExpectNearTheReference(layer, {.tp = 2, .ep = 2});
  ExpectNearTheReference(layer, {.tp = 2, .ep = 1});
  ExpectNearTheReference(layer, {.tp = 2, .ep = 2, .dp = 2});
}

void ExpectRowsOfTheRouter(const TestLayer& layer) {
  const auto want = Ranks{layer, DType::kF32, DeepEp("auto"), Passes(1)}.On({});
  for (const char* mode : {"normal", "low_latency"}) {
    ExpectSameBits(layer, DType::kF32, DeepEp(mode), want, {.tp = 2, .ep = 2});
    ExpectSameBits(layer, DType::kF32, DeepEp(mode), want, {.tp = 2, .ep = 2, .dp = 2});
  }
  const Ranks gathered{layer, DType::kF32, DeepEp("auto"), Passes(1)};  // with MoE-TP
  EXPECT_LT(RelativeError(gathered.On({.tp = 4, .ep = 2}), want), 1e-5);
  for (const MeshShape& mesh :
       {MeshShape{.tp = 2}, {.tp = 2, .ep = 2}, {.tp = 2, .ep = 2, .dp = 2}})
    ExpectNearTheReference(layer, mesh);
}

TEST(CudaMoeRanks, RowsOfTheRouterChangeNoBitAndAreNearTheReference) {
  SKIP_WITHOUT_GPU();
  ExpectRowsOfTheRouter(TestLayer({.hidden = 128,
                                   .intermediate = 128,
                                   .num_experts = 40,
                                   .top_k = 20,
                                   .squared = true,
                                   .router_width = 300}));
}

TEST(CudaMoeRanks, ExpertsByTokenIdsChangeNoBitAndAreNearTheReference) {
  SKIP_WITHOUT_GPU();
  ExpectRowsOfTheRouter(TestLayer({.hidden = 128,
                                   .intermediate = 128,
                                   .num_experts = 40,
                                   .top_k = 6,
                                   .limited = true,
                                   .router_width = 129,
                                   .by_token = true}));
}

// The shared expert is dispatched like a routed expert, to a rank with little load.
TEST(CudaMoeRanks, WaterfillChangesNoBit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    TestLayer layer = LayerFor(format);
    MoeOptions options = DeepEp("auto");
    options.fp8_group_activations = format == WeightFormat::kFp8Block;
    options.waterfill = true;
    const auto want = Ranks{layer, DType::kBF16, options, Passes(1)}.On({});
    for (const char* mode : {"normal", "low_latency", "auto"}) {
      options.deepep_mode = mode;
      ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 2, .ep = 2});
      ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 4, .ep = 4, .dp = 2});
    }
    options.single_batch_overlap = true;
    ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 2, .ep = 2});
    options.num_redundant_experts = 2;
    layer.config.placement = ExpertPlacement(12, {11, 3, 0, 1, 10, 2, 8, 7, 6, 5, 9, 4, 0, 11});
    ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 4, .ep = 4, .dp = 2});
    // Without an exchange, ranks gather the tokens of all ranks.
    options = {};
    options.fp8_group_activations = format == WeightFormat::kFp8Block;
    options.waterfill = true;
    layer.config.placement = {};
    const auto sums =
        Ranks{layer, DType::kBF16, options, Passes(2)}.On({.tp = 2, .ep = 2, .dp = 2});
    ASSERT_EQ(sums.size(), want.size());
    for (size_t i = 0; i < sums.size(); ++i)
      ASSERT_NEAR(sums[i], want[i], 0.02f * (1.0f + std::abs(want[i]))) << i;
  }
}

TEST(CudaMoeRanks, NamesOfExchangesChangeNoBit) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = LayerFor(WeightFormat::kBF16);
  const auto want = Ranks{layer, DType::kBF16, DeepEp("auto"), Passes(1)}.On({});
  for (const char* name : {"mooncake", "flashinfer", "fused"}) {
    MoeOptions options = DeepEp("auto");
    options.a2a_backend = name;
    ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 2, .ep = 2});
    ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 4, .ep = 4, .dp = 2});
  }
}

// Two passes are in flight at a time. The exchanges of one overlap the computation of the other.
TEST(CudaMoeRanks, PassesInFlightChangeNoBit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    const TestLayer layer = LayerFor(format);
    MoeOptions options = DeepEp("auto");
    options.fp8_group_activations = format == WeightFormat::kFp8Block;
    const auto want = Ranks{layer, DType::kBF16, options, Passes(1)}.On({});
    for (const char* mode : {"normal", "low_latency", "auto"}) {
      options.deepep_mode = mode;
      options.passes = 2;
      ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 2, .ep = 2});
      ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 4, .ep = 4, .dp = 2});
      options.passes = 1;
    }
  }
  const TestLayer layer = LayerFor(WeightFormat::kBF16);
  MoeOptions none;
  const auto want = Ranks{layer, DType::kBF16, none, Passes(1)}.On({.tp = 2, .ep = 2});
  none.passes = 2;
  EXPECT_TRUE(
      kernels::SameBits(Ranks{layer, DType::kBF16, none, Passes(1)}.On({.tp = 2, .ep = 2}), want));
}

// Combine sends outputs in parts while the down projection runs, with one pass and with two passes
// in flight. `parts` 0 means the default number, which is 1 for such small batches.
TEST(CudaMoeRanks, SingleBatchOverlapChangesNoBit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4}) {
    const TestLayer layer = LayerFor(format);
    const DType dtype = format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
    MoeOptions options = DeepEp("auto");
    options.fp8_group_activations = format == WeightFormat::kFp8Block;
    const auto want = Ranks{layer, dtype, options, Passes(1)}.On({});
    options.single_batch_overlap = true;
    for (const char* mode : {"normal", "low_latency", "auto"}) {
      options.deepep_mode = mode;
      for (const auto& [passes, parts] : {std::pair(1, 0), {1, 3}, {2, 3}}) {
        options.passes = passes;
        for (const MeshShape& mesh :
             {MeshShape{.tp = 2, .ep = 2}, MeshShape{.tp = 4, .ep = 4, .dp = 2}}) {
          SCOPED_TRACE(::testing::Message() << Describe(mesh, options) << " " << Name(format)
                                            << ", " << passes << " passes, " << parts << " parts");
          EXPECT_TRUE(kernels::SameBits(
              Ranks{layer, dtype, options, Passes(mesh.dp), {}, parts}.On(mesh), want));
        }
      }
    }
  }
}

// Expects unchanged bits for batches with many rows per expert, in which each part is a range of
// rows.
void ExpectSameBitsOfManyRows(const TestLayer& layer, const std::vector<int64_t>& totals,
                              const std::vector<MeshShape>& meshes) {
  MoeOptions options = DeepEp("normal");
  options.fp8_group_activations = layer.spec.format == WeightFormat::kFp8Block;
  const auto run = [&](const MeshShape& mesh, int parts) {
    return Ranks{layer, DType::kBF16, options, SpreadPasses(totals, mesh.dp, /*decode=*/false),
                 {},    parts}
        .On(mesh);
  };
  const auto want = run({}, 0);
  options.single_batch_overlap = true;
  for (const MeshShape& mesh : meshes) {
    for (const int parts : {0, 3}) {
      SCOPED_TRACE(::testing::Message() << Describe(mesh, options) << " " << Name(layer.spec.format)
                                        << ", " << parts << " parts");
      EXPECT_TRUE(kernels::SameBits(run(mesh, parts), want));
    }
  }
}

TEST(CudaMoeRanks, SingleBatchOverlapOfManyRowsChangesNoBit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kFp8Block, WeightFormat::kMxfp4})
    ExpectSameBitsOfManyRows(LayerFor(format), {700, 2500},
                             {{.tp = 2, .ep = 2}, {.tp = 4, .ep = 4, .dp = 4}});
}

// All rows go to the first rank, which needs a second chunk: 18000 rows in chunks of 16384.
TEST(CudaMoeRanks, SingleBatchOverlapOfSeveralChunksChangesNoBit) {
  SKIP_WITHOUT_GPU();
  TestLayer layer = LayerFor(WeightFormat::kBF16);
  std::vector<float> bias(layer.spec.num_experts, 0.0f);
  std::fill_n(bias.begin(), layer.spec.top_k, 1000.0f);
  layer.whole.router.bias = bias.data();
  ExpectSameBitsOfManyRows(layer, {6000}, {{.tp = 4, .ep = 4}});
}

TEST(CudaMoeRanks, SingleBatchOverlapChangesNoBitInRoundsAndByRank) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = LayerFor(WeightFormat::kBF16);
  const MeshShape mesh = {.tp = 2, .ep = 2, .dp = 2};
  for (const char* mode : {"normal", "low_latency"}) {
    for (const char* rows : {"slot", "rank"}) {
      MoeOptions options = DeepEp(mode);
      options.combine_rows = rows;
      options.long_seq_per_round_tokens = 9;
      options.max_dispatch_tokens_per_rank = 4;
      const auto want = Ranks{layer, DType::kBF16, options, Passes(2)}.On(mesh);
      options.single_batch_overlap = true;
      EXPECT_TRUE(kernels::SameBits(
          Ranks{layer, DType::kBF16, options, Passes(2), {}, /*down_parts=*/3}.On(mesh), want))
          << mode << " by " << rows;
    }
  }
}

// Combine has no parts, either because the exchange cannot send them or because rows are not
// exchanged.
TEST(CudaMoeRanks, SingleBatchOverlapWithoutPartsChangesNoBit) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = LayerFor(WeightFormat::kBF16);
  MoeOptions none;
  const auto want = Ranks{layer, DType::kBF16, none, Passes(1)}.On({.tp = 2, .ep = 2});
  none.single_batch_overlap = true;
  EXPECT_TRUE(
      kernels::SameBits(Ranks{layer, DType::kBF16, none, Passes(1)}.On({.tp = 2, .ep = 2}), want));
  if (DeviceCount() < 2) return;  // NCCL needs one GPU per rank
  MoeOptions options = DeepEp("auto");
  const auto plain = Ranks{layer, DType::kBF16, options, Passes(1)}.On({});
  options.single_batch_overlap = true;
  ExpectSameBits(layer, DType::kBF16, options, plain, {.tp = 2, .ep = 2}, {.ranks_per_host = 1});
}

// Exchange over NCCL, as if every rank had its own host.
TEST(CudaMoeRanks, HostsChangeNoBit) {
  if (DeviceCount() < 2) GTEST_SKIP() << "NCCL needs one GPU per rank";
  const TestLayer layer = LayerFor(WeightFormat::kFp8Block);
  MoeOptions options = DeepEp("auto");
  options.fp8_group_activations = true;
  const auto want = Ranks{layer, DType::kBF16, options, Passes(1)}.On({});
  for (const char* mode : {"normal", "low_latency", "auto"}) {
    options.deepep_mode = mode;
    ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 2, .ep = 2}, {.ranks_per_host = 1});
    if (DeviceCount() >= 4)
      ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 4, .ep = 4, .dp = 2},
                     {.ranks_per_host = 2, .recorded_tokens = 16});
  }
}

TEST(CudaMoeRanks, LongBatchesGoInRounds) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = LayerFor(WeightFormat::kBF16);
  const auto want = Ranks{layer, DType::kBF16, DeepEp("auto"), Passes(1)}.On({});
  for (const char* mode : {"normal", "low_latency", "auto"}) {
    MoeOptions options = DeepEp(mode);
    options.long_seq_per_round_tokens = 9;
    options.max_dispatch_tokens_per_rank = 4;
    ExpectSameBits(layer, DType::kBF16, options, want, {.tp = 2, .ep = 2, .dp = 2});
  }
}

TEST(CudaMoeRanks, RowsThatAreAddedUpByRankAreNearTheReference) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = LayerFor(WeightFormat::kF32);
  for (const char* mode : {"normal", "low_latency"}) {
    MoeOptions options = DeepEp(mode);
    options.combine_rows = "rank";
    const Ranks ranks{layer, DType::kF32, options, Passes(2)};
    EXPECT_LT(RelativeError(ranks.On({.tp = 2, .ep = 2, .dp = 2}),
                            ReferencePasses(layer, options, ranks.passes)),
              1e-5);
  }
}

TEST(CudaMoeRanks, SlicesAndReplicatedTokensAreNearTheReference) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = LayerFor(WeightFormat::kF32);
  MoeOptions none;
  const auto expect = [&](const MoeOptions& options, const MeshShape& mesh) {
    SCOPED_TRACE(Describe(mesh, options));
    const Ranks ranks{layer, DType::kF32, options, Passes(mesh.dp)};
    EXPECT_LT(RelativeError(ranks.On(mesh), ReferencePasses(layer, options, ranks.passes)), 1e-5);
  };
  expect(none, {.tp = 2, .ep = 2});
  expect(none, {.tp = 2, .ep = 1});
  expect(none, {.tp = 4, .ep = 2});
  expect(none, {.tp = 2, .ep = 2, .dp = 2});
  expect(none, {.tp = 4, .ep = 2, .dp = 2});
  expect(DeepEp("auto"), {.tp = 2, .ep = 1});
  expect(DeepEp("auto"), {.tp = 4, .ep = 2});
  expect(DeepEp("auto"), {.tp = 4, .ep = 2, .dp = 4});
}

}  // namespace
}  // namespace switchyard::cuda
