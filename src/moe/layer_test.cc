// Compares the whole layer on rank threads with the single-process reference.
#include "moe/layer.h"

#include <mutex>
#include <numeric>
#include <string>

#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/check_options.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

const std::vector<MeshShape> kMeshes = {{.tp = 1},
                                        {.tp = 2},
                                        {.tp = 2, .ep = 2},
                                        {.tp = 4, .ep = 2},
                                        {.tp = 4, .ep = 4},
                                        {.tp = 8, .ep = 4},
                                        // DP attention
                                        {.tp = 2, .ep = 2, .dp = 2},
                                        {.tp = 4, .ep = 1, .dp = 4},
                                        {.tp = 4, .ep = 2, .dp = 2},
                                        {.tp = 4, .ep = 4, .dp = 2},
                                        // MoE-TP and attention groups do not nest
                                        {.tp = 6, .ep = 2, .dp = 3},
                                        {.tp = 6, .ep = 3, .dp = 2}};

MoeOptions Options(const A2aChoice& choice, DType row_dtype, int capacity = 128) {
  return {.a2a_backend = choice.a2a,
          .deepep_mode = choice.mode,
          .max_dispatch_tokens_per_rank = capacity,
          .row_dtype = row_dtype};
}

// Tolerance of the comparison. In bfloat16, an output near the midpoint of two representable values
// may be rounded either way, and slices of an expert are rounded separately.
double Tolerance(DType row_dtype) { return row_dtype == DType::kF32 ? 1e-5 : 1e-2; }

// Compares the layer with the reference on every mesh. Each mesh is tested with two backends, which
// are taken in turn: the first one in prefill, the second one in decode. With `everywhere`, each
// mesh is tested with all backends.
void ExpectReference(const TestLayer& layer, DType row_dtype, const std::vector<int64_t>& totals,
                     int capacity = 128, bool everywhere = false) {
  const std::vector<A2aChoice> choices = AllA2aChoices();
  size_t turn = 0;
  for (const MeshShape& mesh : kMeshes) {
    for (size_t i = 0; i < (everywhere ? choices.size() : 2); ++i, ++turn) {
      const A2aChoice& choice = choices[turn % choices.size()];
      const bool decode = turn / choices.size() % 2 == 1;
      SCOPED_TRACE(fmt::format("tp {} ep {} dp {} {} decode {}", mesh.tp, mesh.ep, mesh.dp,
                               choice.Describe(), decode));
      const MoeOptions options = Options(choice, row_dtype, capacity);
      const auto passes = SpreadPasses(totals, mesh.dp, decode);
      EXPECT_LT(RelativeError(RunPasses(layer, options, mesh, passes),
                              ReferencePasses(layer, options, passes)),
                Tolerance(row_dtype));
    }
  }
}

TEST(MoeLayerTest, MatchesReferenceOnEveryMeshAndBackend) {
  ExpectReference(TestLayer({.intermediate = 192, .shared = true}), DType::kF32, {13, 6, 1}, 128,
                  /*everywhere=*/true);
}
TEST(MoeLayerTest, MatchesReferenceInBfloat16) {
  ExpectReference(TestLayer({.format = WeightFormat::kBF16, .intermediate = 192, .shared = true}),
                  DType::kBF16, {13, 6, 1});
}
TEST(MoeLayerTest, MatchesReferenceInFloat16) {
  ExpectReference(TestLayer({.format = WeightFormat::kF16, .intermediate = 192}), DType::kF16, {9});
}
TEST(MoeLayerTest, MatchesReferenceWithBiases) {
  ExpectReference(TestLayer({.intermediate = 192, .clamped_with_biases = true}), DType::kF32,
                  {9, 2});
}
TEST(MoeLayerTest, MatchesReferenceWithScaledInputs) {
  ExpectReference(
      TestLayer({.intermediate = 192, .top_k = 1, .shared = true, .scales_input = true}),
      DType::kF32, {13, 6, 1}, 128, /*everywhere=*/true);
}
TEST(MoeLayerTest, MatchesReferenceWithExpertsWithoutComputation) {
  ExpectReference(TestLayer({.intermediate = 192, .shared = true, .zero_experts = 6}), DType::kF32,
                  {13, 6, 1}, 128, /*everywhere=*/true);
}
TEST(MoeLayerTest, ExpertsWithoutComputationInSeveralRounds) {
  ExpectReference(TestLayer({.intermediate = 192, .zero_experts = 9}), DType::kF32, {21, 5},
                  /*capacity=*/2);
}
TEST(MoeLayerTest, MatchesReferenceWithoutGatesAndWithRowsOfTheRouter) {
  ExpectReference(TestLayer({.intermediate = 192, .squared = true, .router_width = 200}),
                  DType::kF32, {13, 6, 1});
}
// DeepSeek-V4. Rows of the router are gathered and go in rounds, with the token ids.
TEST(MoeLayerTest, MatchesReferenceWithExpertsByTokenIds) {
  const TestLayer layer({.intermediate = 192,
                         .limited = true,
                         .shared = true,
                         .router_width = 161,
                         .by_token = true});
  ExpectReference(layer, DType::kF32, {13, 6, 1}, /*capacity=*/4);
}
TEST(MoeLayerTest, OneHotExpertGetsAllTokens) {
  ExpectReference(TestLayer({.intermediate = 192, .top_k = 1, .hot_expert = 7}), DType::kF32,
                  {16, 3});
}
TEST(MoeLayerTest, TokensWithoutExpertsGetTheSharedOneAlone) {
  ExpectReference(TestLayer({.intermediate = 192, .shared = true, .no_experts = true}), DType::kF32,
                  {5});
}
TEST(MoeLayerTest, RanksAndGroupsWithoutTokensTakePart) {
  ExpectReference(TestLayer({.intermediate = 192, .num_experts = 16, .shared = true}), DType::kF32,
                  {1, 0, 3});
}
TEST(MoeLayerTest, RanksWithoutExpertsTakePart) {
  ExpectReference(TestLayer({.intermediate = 192, .num_experts = 3, .top_k = 2}), DType::kF32, {8});
}
TEST(MoeLayerTest, BatchAboveACapacityGoesInRounds) {
  ExpectReference(TestLayer({.intermediate = 192, .shared = true}), DType::kF32, {21, 5},
                  /*capacity=*/2);
}

TEST(MoeLayerTest, ScaledInputsCannotShareRowsWithTheSharedExpert) {
  const TestLayer layer({.intermediate = 64, .top_k = 1, .shared = true, .scales_input = true});
  MoeOptions options = Options({"deepep", "normal"}, DType::kF32);
  options.waterfill = true;
  EXPECT_THAT(ErrorOf([&] { CheckMoeValues(options, layer.Shape(8), {.tp = 2, .ep = 2}); }),
              HasSubstr("--enable-deepep-waterfill: this model scales the input rows"));
}

// Groups with only decode tokens, only prompts, or both.
TEST(MoeLayerTest, MixedBatchesMatchTheReference) {
  const TestLayer layer({.intermediate = 192, .shared = true});
  const std::vector<TestPass> passes = {{{7, 4, 0}, {3, 4, 0}}, {{2, 5, 6}, {0, 1, 6}, 1}};
  for (const A2aChoice& choice : AllA2aChoices()) {
    SCOPED_TRACE(choice.Describe());
    const MoeOptions options = Options(choice, DType::kF32, /*capacity=*/2);
    for (const int ep : {6, 2})
      EXPECT_LT(RelativeError(RunPasses(layer, options, {.tp = 6, .ep = ep, .dp = 3}, passes),
                              ReferencePasses(layer, options, passes)),
                1e-5);
  }
}

TEST(MoeLayerTest, RowsMayBeExchangedAsFp8) {
  const TestLayer layer({.format = WeightFormat::kBF16, .shared = true});
  for (const A2aChoice& choice : AllA2aChoices()) {
    SCOPED_TRACE(choice.Describe());
    MoeOptions options = Options(choice, DType::kBF16);
    options.dispatcher_output_dtype = "fp8";
    const auto passes = SpreadPasses({11, 2}, 2, false);
    EXPECT_LT(RelativeError(RunPasses(layer, options, {.tp = 4, .ep = 4, .dp = 2}, passes),
                            ReferencePasses(layer, options, passes)),
              Tolerance(DType::kBF16));
  }
}

TEST(MoeLayerTest, DispatchedSharedExpertMatchesTheReferenceWithRowsInFlight) {
  const TestLayer layer(
      {.format = WeightFormat::kBF16, .hidden = 96, .intermediate = 64, .shared = true});
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const MeshShape& mesh :
         {MeshShape{.tp = 1}, {.tp = 4, .ep = 4}, {.tp = 4, .ep = 4, .dp = 4}}) {
      if (choice.a2a == "none" && mesh.dp == 1) continue;  // rejected: no rows are sent
      SCOPED_TRACE(fmt::format("{} tp {} dp {}", choice.Describe(), mesh.tp, mesh.dp));
      MoeOptions options = Options(choice, DType::kBF16, /*capacity=*/3);
      options.waterfill = true;
      const auto passes = SpreadPasses({17, 0, 2}, mesh.dp, false);
      EXPECT_LT(RelativeError(RunPasses(layer, options, mesh, passes),
                              ReferencePasses(layer, options, passes)),
                Tolerance(DType::kBF16));
    }
  }
}

// If a caller writes the dispatched rows to InputRows' buffer itself, results are bit-identical.
// Only the router and the shared expert then read the float32 rows.
TEST(MoeLayerTest, OutputsMayBeReadInPlace) {
  const TestLayer layer({.hidden = 96, .intermediate = 64, .shared = true});
  const MeshShape mesh{.tp = 4, .ep = 4, .dp = 2};
  const int64_t h = layer.spec.hidden;
  const std::vector<TestPass> passes = {
      {{7, 2}, {7, 2}}, {{5, 6}, {0, 0}, 1}, {{3, 4}, {1, 4}, 2}, {{0, 0}, {0, 0}}};
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const bool fp8 : {false, true}) {
      SCOPED_TRACE(choice.Describe());
      MoeOptions options = Options(choice, DType::kBF16, /*capacity=*/5);
      options.dispatcher_output_dtype = fp8 ? "fp8" : "bf16";
      const MoeShape shape = layer.Shape(7);
      RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& pool) {
        const int group = comm.mesh.dp_rank();
        const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                           MakeCpuMoe(options, shape, comm, pool));
        const auto state = moe.MakeState();
        for (const TestPass& pass : passes) {
          const MoeTokens tokens{pass.tokens, pass.decoding};
          const std::vector<float> all = layer.Hidden(pass.total(), pass.seed);
          const float* x = all.data() + pass.FirstOf(group) * h;
          std::vector<float> want(pass.tokens[group] * h), got(want.size());
          moe.Forward(*state, x, tokens, want.data());
          const MoeInputBuffer place = moe.InputRows(*state, tokens);
          const bool arena = choice.a2a == "deepep" || choice.a2a == "mooncake";
          if (arena && pass.seed == 1 && choice.mode == "normal") {
            EXPECT_NE(place.rows, nullptr);
          }
          if (!arena) {
            EXPECT_EQ(place.rows, nullptr);
          }
          if (place.rows)
            for (int64_t t = place.tokens.begin; t < place.tokens.end; ++t)
              StoreRow(place.format, x + t * h, h,
                       place.rows + (t - place.tokens.begin) * place.format.Bytes(h));
          moe.Forward(*state, x, tokens, got.data());
          EXPECT_TRUE(kernels::SameBits(got, want));
        }
      });
    }
  }
}

// For any order of ranks, groups and rounds, every rank of a group receives the ids of its tokens.
TEST(MoeLayerTest, RoutedExpertsAreTheRoutersChoice) {
  const TestLayer layer({.hidden = 96, .intermediate = 64, .num_experts = 12});
  const int k = layer.spec.top_k;
  const TestPass pass{{7, 0, 4}, {2, 0, 4}};
  ThreadPool pool(1);
  std::vector<float> logits(pass.total() * layer.spec.num_experts);
  const std::vector<float> hidden = layer.Hidden(pass.total(), pass.seed);
  kernels::Linear({.x = hidden.data(),
                   .ldx = layer.spec.hidden,
                   .w = layer.whole.router.w,
                   .bias = layer.whole.router.bias,
                   .y = logits.data(),
                   .ldy = layer.spec.num_experts,
                   .m = pass.total()},
                  pool);
  TopK want;
  SelectExperts(layer.config.router, logits.data(), pass.total(), nullptr, &want, pool);

  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const int ep : {6, 2}) {
      SCOPED_TRACE(fmt::format("{} ep {}", choice.Describe(), ep));
      const MoeOptions options = Options(choice, DType::kF32, /*capacity=*/2);
      const MeshShape mesh{.tp = 6, .ep = ep, .dp = 3};
      const MoeShape shape = layer.Shape(7);
      RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& threads) {
        const int group = comm.mesh.dp_rank();
        const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                           MakeCpuMoe(options, shape, comm, threads));
        std::vector<float> out(pass.tokens[group] * layer.spec.hidden);
        std::vector<int32_t> ids(pass.tokens[group] * k, -2);
        moe.Forward(*moe.MakeState(), hidden.data() + pass.FirstOf(group) * layer.spec.hidden,
                    {pass.tokens, pass.decoding, ids.data()}, out.data());
        const auto first = want.ids.begin() + pass.FirstOf(group) * k;
        EXPECT_EQ(ids, std::vector<int32_t>(first, first + pass.tokens[group] * k));
      });
    }
  }
}

// For any order of ranks, groups and rounds, the ranks of a group together record the faults of its
// tokens. Each fault is recorded at the index of its token.
TEST(MoeLayerTest, RouterFaultsAreRecordedByTheRanksThatRouteTheirTokens) {
  TestLayer layer({.hidden = 96, .intermediate = 64, .num_experts = 12});
  layer.config.layer = 3;
  const TestPass pass{{7, 0, 4}, {2, 0, 4}};
  const FaultyRows rows = WithRouterFaults(&layer, pass.total());
  std::vector<int32_t> want;
  for (const int32_t expert : rows.experts) want.push_back(expert < 0 ? 0 : FaultOf(3, expert));
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const int ep : {6, 2}) {
      SCOPED_TRACE(fmt::format("{} ep {}", choice.Describe(), ep));
      const MoeOptions options = Options(choice, DType::kF32, /*capacity=*/2);
      const MeshShape mesh{.tp = 6, .ep = ep, .dp = 3};
      const MoeShape shape = layer.Shape(7);
      std::mutex mutex;
      std::vector<int32_t> got(pass.total(), 0);
      RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& threads) {
        const int group = comm.mesh.dp_rank();
        const int64_t tokens = pass.tokens[group], first = pass.FirstOf(group);
        const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                           MakeCpuMoe(options, shape, comm, threads));
        std::vector<float> out(tokens * layer.spec.hidden);
        std::vector<int32_t> records(tokens), index(tokens);
        std::iota(index.rbegin(), index.rend(), 0);
        moe.Forward(*moe.MakeState(), rows.hidden.data() + first * layer.spec.hidden,
                    {pass.tokens, pass.decoding, nullptr, {records.data(), index.data()}},
                    out.data());
        const std::lock_guard lock(mutex);
        for (int64_t t = 0; t < tokens; ++t)
          if (records[index[t]] != 0) got[first + t] = records[index[t]];
      });
      EXPECT_EQ(got, want);
    }
  }
}

// Neither a later layer nor another round overwrites the record.
TEST(MoeLayerTest, TheFirstLayersRouterFaultStays) {
  TestLayer layer({.hidden = 96, .intermediate = 64});
  const FaultyRows rows = WithRouterFaults(&layer, 4);
  const TestPass pass{{4}, {4}};
  const MoeOptions options;
  std::vector<int32_t> records = {0, FaultOf(1, 8), 0, 0};
  RunMoeRanks(options, layer.Shape(4), {}, [&](RankComm& comm, ThreadPool& threads) {
    const auto runtime = MakeCpuMoe(options, layer.Shape(4), comm, threads);
    const int32_t index[] = {0, 1, 2, 3};
    std::vector<float> out(rows.hidden.size());
    for (const int i : {2, 5}) {
      layer.config.layer = i;
      MoeLayer(layer.config, layer.ShareOf(comm.mesh, true), runtime)
          .Forward(*runtime->MakeState(0), rows.hidden.data(),
                   {pass.tokens, pass.decoding, nullptr, {records.data(), index}}, out.data());
    }
  });
  EXPECT_EQ(records, (std::vector<int32_t>{0, FaultOf(1, 8), 0, FaultOf(2, 0)}));
}

}  // namespace
}  // namespace switchyard
