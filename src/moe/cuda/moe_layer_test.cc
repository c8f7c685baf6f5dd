#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/testing.h"
#include "moe/cuda/runners/expert_weights.h"
#include "moe/cuda/testing.h"
#include "moe/layer.h"

namespace switchyard::cuda {
namespace {

std::vector<float> Reference(const TestLayer& layer, RowFormat format, int64_t tokens,
                             uint32_t seed = 7) {
  const auto hidden = layer.Hidden(tokens, seed), router_rows = layer.RouterRows(hidden);
  std::vector<float> out(hidden.size());
  MoeReference(layer.config, layer.whole, format, hidden.data(), tokens, out.data(),
               /*shared_dispatched=*/false, router_rows.empty() ? nullptr : router_rows.data());
  return out;
}

void ExpectExact(const TestLayer& layer) {
  OnGpu gpu(layer, DType::kF32);
  for (const int64_t tokens : {401, 0, 1, 5, 131})
    EXPECT_LT(RelativeError(gpu.Forward(layer, tokens), Reference(layer, {}, tokens)), 1e-5)
        << tokens;
}

TEST(CudaMoeLayer, ExactModeTakesEveryWeightFormat) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : kernels::kAllFormats) {
    SCOPED_TRACE(Name(format));
    ExpectExact(TestLayer({.format = format}));
  }
}

TEST(CudaMoeLayer, ExactModeWithBiasesAndClampedActivation) {
  SKIP_WITHOUT_GPU();
  ExpectExact(TestLayer({.hidden = 64, .intermediate = 96, .clamped_with_biases = true}));
}

TEST(CudaMoeLayer, ExactModeWithASharedExpert) {
  SKIP_WITHOUT_GPU();
  TestLayer layer({.shared = true});
  ExpectExact(layer);
  layer.whole.shared_gate = {};
  ExpectExact(layer);
}

TEST(CudaMoeLayer, ExactModeWithOneHotExpertAndWithNone) {
  SKIP_WITHOUT_GPU();
  ExpectExact(TestLayer({.hot_expert = 4}));
  ExpectExact(TestLayer({.no_experts = true}));
}

TEST(CudaMoeLayer, RoutersOfTheFamilies) {
  SKIP_WITHOUT_GPU();
  using Scoring = RouterConfig::Scoring;
  using Group = RouterConfig::GroupScore;
  TestLayer layer({.hidden = 64, .intermediate = 32, .num_experts = 16, .top_k = 4});
  const std::vector<float> correction = kernels::Random(9).Normal(16, 0.1f);
  const auto with = [&](RouterConfig router, const float* bias) {
    router.num_experts = 16;
    router.top_k = 4;
    layer.config.router = router;
    layer.whole.router.correction_bias = bias;
    ExpectExact(layer);
  };
  with({.scoring = Scoring::kSoftmax}, nullptr);
  with({.scoring = Scoring::kTopKSoftmax}, nullptr);
  with({.scoring = Scoring::kSigmoid,
        .renormalize = true,
        .num_groups = 4,
        .topk_groups = 2,
        .group_score = Group::kTop2Sum,
        .routed_scaling_factor = 2.5f},
       correction.data());
  with({.scoring = Scoring::kSoftmax,
        .num_groups = 4,
        .topk_groups = 2,
        .routed_scaling_factor = 16},
       nullptr);
  with({.scoring = Scoring::kSqrtSoftplus, .renormalize = true, .routed_scaling_factor = 1.5f},
       correction.data());
  TestLayer two({.hidden = 64, .intermediate = 32, .num_experts = 16, .top_k = 2});
  two.config.router = {
      .num_experts = 16, .top_k = 2, .scoring = Scoring::kSparseMixer, .jitter = 0.3f};
  ExpectExact(two);
}

// As in DeepSeek-V4. Passes of few rows are routed by other kernels.
TEST(CudaMoeLayer, ExpertsByTokenIdsWithLimitedActivation) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat router : {WeightFormat::kF32, WeightFormat::kBF16})
    ExpectExact(TestLayer({.limited = true,
                           .shared = true,
                           .router_width = 161,
                           .by_token = true,
                           .router = router}));
}

TestLayer Bf16Layer(bool clamped_with_biases = false) {
  return TestLayer({.format = WeightFormat::kBF16,
                    .hidden = 256,
                    .intermediate = 384,
                    .clamped_with_biases = clamped_with_biases,
                    .shared = true});
}
TestLayer Fp8Layer() {
  return TestLayer({.format = WeightFormat::kFp8Block,
                    .activation = ActivationFormat::kFp8Group,
                    .hidden = 512,
                    .intermediate = 256,
                    .shared = true});
}
MoeOptions Fp8Options() { return {.fp8_group_activations = true}; }

void ExpectNear(const TestLayer& layer, MoeOptions options, RowFormat format, double most) {
  OnGpu gpu(layer, DType::kBF16, options);
  for (const int64_t tokens : {401, 0, 1, 7, 130})
    EXPECT_LT(RelativeError(gpu.Forward(layer, tokens), Reference(layer, format, tokens)), most)
        << tokens;
}

TEST(CudaMoeLayer, Bf16IsNearTheReference) {
  SKIP_WITHOUT_GPU();
  ExpectNear(Bf16Layer(), {}, {DType::kBF16}, 1e-2);
  ExpectNear(Bf16Layer(/*clamped_with_biases=*/true), {}, {DType::kBF16}, 1e-2);
}

// As in Nemotron-H: relu², and a router that reads wider rows than the experts.
TEST(CudaMoeLayer, ExpertsWithoutAGateAndRowsOfTheRouter) {
  SKIP_WITHOUT_GPU();
  ExpectExact(TestLayer({.squared = true, .shared = true}));
  ExpectExact(TestLayer({.hidden = 60, .intermediate = 92, .squared = true, .router_width = 164}));
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kMxfp4, WeightFormat::kInt4Group})
    for (const bool own_rows : {false, true})
      ExpectNear(TestLayer({.format = format,
                            .hidden = 256,
                            .intermediate = 384,
                            .squared = true,
                            .shared = !own_rows,
                            .router_width = own_rows ? 448 : 0,
                            .router = WeightFormat::kBF16}),
                 {}, {DType::kBF16}, 1e-2);
  ExpectExact(TestLayer({.hidden = 64,
                         .intermediate = 32,
                         .num_experts = 512,
                         .top_k = 22,
                         .squared = true,
                         .router_width = 128}));
  ExpectNear(TestLayer({.format = WeightFormat::kFp8Block,
                        .activation = ActivationFormat::kFp8Group,
                        .hidden = 512,
                        .intermediate = 256,
                        .squared = true,
                        .router_width = 320}),
             Fp8Options(), {DType::kBF16, true}, 3e-2);
}

TEST(CudaMoeLayer, ScaledInputs) {
  SKIP_WITHOUT_GPU();
  ExpectExact(TestLayer({.top_k = 1, .shared = true, .scales_input = true}));
  const TestLayer layer({.format = WeightFormat::kBF16,
                         .hidden = 256,
                         .intermediate = 384,
                         .top_k = 1,
                         .shared = true,
                         .scales_input = true});
  ExpectNear(layer, {}, {DType::kBF16}, 1e-2);
}

TestLayer LayerWithZeroExperts(WeightFormat format, bool shared = true) {
  return TestLayer({.format = format,
                    .hidden = 256,
                    .intermediate = 384,
                    .shared = shared,
                    .zero_experts = 6,
                    .router = format});
}

TEST(CudaMoeLayer, ExpertsWithoutComputation) {
  SKIP_WITHOUT_GPU();
  ExpectExact(LayerWithZeroExperts(WeightFormat::kF32));
  ExpectExact(LayerWithZeroExperts(WeightFormat::kF32, /*shared=*/false));
  ExpectNear(LayerWithZeroExperts(WeightFormat::kBF16), {}, {DType::kBF16}, 1e-2);
  ExpectExact(TestLayer(
      {.hidden = 64, .intermediate = 32, .num_experts = 300, .top_k = 12, .zero_experts = 256}));
}

TEST(CudaMoeLayer, Bf16TakesSizesThatMatrixUnitsDoNot) {
  SKIP_WITHOUT_GPU();
  ExpectNear(TestLayer({.format = WeightFormat::kMxfp4, .hidden = 96, .intermediate = 160}), {},
             {DType::kBF16}, 1e-2);
}

TEST(CudaMoeLayer, Fp8IsNearTheReference) {
  SKIP_WITHOUT_GPU();
  ExpectNear(Fp8Layer(), Fp8Options(), {DType::kBF16, true}, 3e-2);
  ExpectNear(Fp8Layer(), {.dispatcher_output_dtype = "bf16"}, {DType::kBF16}, 3e-2);
}

TEST(CudaMoeLayer, ATokenHasTheSameBitsInEveryBatch) {
  SKIP_WITHOUT_GPU();
  struct Case {
    TestLayer layer;
    DType dtype;
    MoeOptions options;
  };
  Case cases[] = {{TestLayer({.shared = true}), DType::kF32, {}},
                  {Bf16Layer(), DType::kBF16, {}},
                  {Fp8Layer(), DType::kBF16, Fp8Options()}};
  for (Case& c : cases) {
    // With 3000 tokens, the rows of an expert fill whole blocks. The smaller passes below have few
    // rows per expert.
    OnGpu gpu(c.layer, c.dtype, c.options, /*max_tokens=*/3000);
    const int64_t hidden = c.layer.spec.hidden;
    const auto x = c.layer.Hidden(3000);
    const auto all = ForwardOnce(*gpu.moe, *gpu.state, *gpu.device, x, 3000);
    for (const int64_t tokens : {1, 9, 200, 1000}) {
      const auto some = ForwardOnce(*gpu.moe, *gpu.state, *gpu.device,
                                    {x.end() - tokens * hidden, x.end()}, tokens);
      EXPECT_TRUE(kernels::SameBits(some, {all.end() - tokens * hidden, all.end()}))
          << tokens << " tokens, " << Name(c.layer.spec.format);
    }
  }
}

TEST(CudaMoeLayer, PlacementAndRedundantExpertsChangeNoBit) {
  SKIP_WITHOUT_GPU();
  TestLayer layer = Bf16Layer();
  OnGpu trivial(layer, DType::kBF16);
  const auto want = trivial.Forward(layer, 77);
  MoeOptions options;
  options.num_redundant_experts = 2;
  layer.config.placement = ExpertPlacement(10, {3, 9, 0, 1, 2, 8, 7, 6, 5, 4, 9, 0});
  OnGpu permuted(layer, DType::kBF16, options);
  EXPECT_TRUE(kernels::SameBits(permuted.Forward(layer, 77), want));
}

TEST(CudaMoeLayer, RoutedExpertsAreTheCpusChoice) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer({});
  OnGpu gpu(layer, DType::kF32);
  constexpr int64_t kTokens = 50;
  ThreadPool pool(1);
  const auto hidden = layer.Hidden(kTokens);
  std::vector<float> logits(kTokens * 10);
  kernels::Linear({.x = hidden.data(),
                   .ldx = layer.spec.hidden,
                   .w = layer.whole.router.w,
                   .bias = layer.whole.router.bias,
                   .y = logits.data(),
                   .ldy = 10,
                   .m = kTokens},
                  pool);
  TopK want;
  SelectExperts(layer.config.router, logits.data(), kTokens, nullptr, &want, pool);
  const DeviceMemory x = ToDevice(hidden), y(x.bytes());
  const std::vector<int64_t> counts = {kTokens}, decode = {20};
  const DeviceMemory ids = ToDevice(std::vector<int32_t>(kTokens * 3, -5));
  gpu.moe->Forward(*gpu.state, x.as<float>(), {counts, decode, ids.as<int32_t>()}, y.as<float>());
  gpu.device->Synchronize();
  EXPECT_EQ(ToHost<int32_t>(ids, kTokens * 3), want.ids);
}

TEST(CudaMoeLayer, CanBeRecordedAndReplayed) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = Fp8Layer();
  OnGpu gpu(layer, DType::kBF16, Fp8Options());
  constexpr int64_t kTokens = 20;
  const size_t bytes = kTokens * layer.spec.hidden * sizeof(float);
  const auto x = gpu.device->Allocate(bytes), y = gpu.device->Allocate(bytes);
  const std::vector<int64_t> counts = {kTokens};
  for (const uint32_t seed : {1, 2, 3, 4}) {
    const auto hidden = layer.Hidden(kTokens, seed);
    gpu.device->CopyIn(x.get(), hidden.data(), bytes);
    gpu.device->Run(/*key=*/1, [&] {
      gpu.moe->Forward(*gpu.state, static_cast<float*>(x.get()), {counts, counts},
                       static_cast<float*>(y.get()));
    });
    std::vector<float> out(hidden.size());
    gpu.device->CopyOut(out.data(), y.get(), bytes);
    EXPECT_TRUE(kernels::SameBits(out, gpu.Forward(layer, kTokens, seed))) << seed;
  }
}

// Runs passes directly, captured and replayed. A later layer keeps the faults that the first layer
// recorded.
TEST(CudaMoeLayer, RouterFaultsAreRecordedByTokenAndFirstLayer) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 50;
  TestLayer layer({});
  const FaultyRows rows = WithRouterFaults(&layer, kTokens);
  std::vector<int32_t> index(kTokens), want(kTokens, 0);
  std::iota(index.rbegin(), index.rend(), 0);
  for (int64_t t = 0; t < kTokens; ++t)
    if (rows.experts[t] >= 0) want[index[t]] = FaultOf(2, rows.experts[t]);
  const std::vector<int32_t> stale(kTokens, FaultOf(0, 1));
  const std::vector<int64_t> counts = {kTokens};
  const size_t bytes = rows.hidden.size() * sizeof(float), words = kTokens * sizeof(int32_t);
  for (const bool fused : {false, true}) {
    layer.config.layer = 2;
    OnGpu gpu(layer, DType::kF32, {}, kMaxTokens, {.fused = !fused});
    layer.config.layer = 7;
    const MoeLayer later(layer.config, layer.ShareOf(Mesh(), true), gpu.backend);
    const auto x = gpu.device->Allocate(bytes), y = gpu.device->Allocate(bytes);
    const auto at = gpu.device->Allocate(words), faults = gpu.device->Allocate(words);
    gpu.device->CopyIn(x.get(), rows.hidden.data(), bytes);
    gpu.device->CopyIn(at.get(), index.data(), words);
    auto* const records = static_cast<int32_t*>(faults.get());
    const auto* const places = static_cast<const int32_t*>(at.get());
    const MoeTokens tokens = {counts, counts, nullptr, {records, places}};
    for (int run = 0; run < 4; ++run) {
      gpu.device->CopyIn(records, stale.data(), words);
      gpu.device->Run(/*key=*/1, [&] {
        gpu.device->ClearEntries(records, places, kTokens);
        for (const MoeLayer* moe : {static_cast<const MoeLayer*>(gpu.moe.get()), &later})
          moe->Forward(*gpu.state, static_cast<const float*>(x.get()), tokens,
                       static_cast<float*>(y.get()));
      });
      std::vector<int32_t> got(kTokens);
      gpu.device->CopyOut(got.data(), records, words);
      EXPECT_EQ(got, want) << (fused ? "fused" : "plain") << ", run " << run;
    }
  }
}

// One of four ranks holds all selected experts, so it has more rows than one chunk of the GEMMs.
TEST(CudaMoeLayer, RowsBeyondAChunkGoInFurtherRuns) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kTokens = 6000;
  struct Case {
    DType dtype;
    WeightFormat format;
    bool packed;
  };
  for (const auto& [dtype, format, packed] : {Case{DType::kF32, WeightFormat::kBF16, false},
                                              Case{DType::kBF16, WeightFormat::kBF16, false},
                                              Case{DType::kBF16, WeightFormat::kMxfp4, true}}) {
    TestLayer layer({.format = format, .hidden = 128, .intermediate = 128, .num_experts = 16});
    std::vector<float> bias(16, -INFINITY);
    std::fill_n(bias.begin(), 4, 0.0f);
    layer.whole.router.correction_bias = bias.data();
    OnGpu whole(layer, dtype, {}, kTokens);
    const auto want = whole.Forward(layer, kTokens);

    SingleMember members;
    const auto device = TestDevice(dtype, kTokens, 0, {.packs_experts = !packed});
    DeviceMoeContext context;
    context.mesh = Mesh({.tp = 4, .ep = 4}, 0);
    context.groups = {&members, &members, &members, &members};
    context.device = device.get();
    const MoeLayer moe(layer.config, layer.ShareOf(context.mesh, false),
                       MakeCudaMoe({}, layer.Shape(kTokens), context));
    EXPECT_TRUE(kernels::SameBits(
        ForwardOnce(moe, *moe.MakeState(), *device, layer.Hidden(kTokens), kTokens), want));
  }
}

TEST(CudaMoeLayer, FusedOpsDoNotChangeABit) {
  SKIP_WITHOUT_GPU();
  for (const TestLayer& layer : {Bf16Layer(), Bf16Layer(/*clamped_with_biases=*/true), Fp8Layer(),
                                 LayerWithZeroExperts(WeightFormat::kBF16)}) {
    OnGpu plain(layer, DType::kBF16, {}, kMaxTokens, {.fused = true});
    OnGpu fused(layer, DType::kBF16);
    for (const int64_t tokens : {401, 0, 1, 5, 16, 131})
      EXPECT_TRUE(kernels::SameBits(fused.Forward(layer, tokens), plain.Forward(layer, tokens)))
          << tokens;
  }
}

// Several layers in one captured pass. They share the buffers of the shared expert, and a layer may
// start while the previous one still runs.
TEST(CudaMoeLayer, SharedExpertsOnASideStreamChangeNoBit) {
  SKIP_WITHOUT_GPU();
  struct Case {
    TestLayer layer;
    MoeOptions options;
  };
  const Case cases[] = {{Bf16Layer(), {}}, {Fp8Layer(), Fp8Options()}};
  for (const auto& [layer, options] : cases)
    for (const int64_t tokens : {1, 20, 300}) {
      const std::vector<int64_t> counts = {tokens};
      const auto hidden = layer.Hidden(tokens);
      const size_t bytes = hidden.size() * sizeof(float);
      std::vector<float> want(hidden.size()), got(hidden.size());
      for (const bool unfused : {false, true}) {
        OnGpu gpu(layer, DType::kBF16, options, kMaxTokens, {.fused = !unfused});
        const auto x = gpu.device->Allocate(bytes), y = gpu.device->Allocate(bytes);
        const auto z = gpu.device->Allocate(bytes);
        const auto forward = [&](const std::shared_ptr<void>& from,
                                 const std::shared_ptr<void>& to) {
          gpu.moe->Forward(*gpu.state, static_cast<float*>(from.get()), {counts, counts},
                           static_cast<float*>(to.get()));
        };
        gpu.device->CopyIn(x.get(), hidden.data(), bytes);
        for (int run = 0; run < 6; ++run) {
          gpu.device->Run(/*key=*/1, [&] {
            forward(x, y);
            forward(y, z);
            forward(z, y);
            forward(y, z);
          });
          gpu.device->CopyOut(got.data(), z.get(), bytes);
          if (!unfused) continue;
          EXPECT_TRUE(kernels::SameBits(got, want)) << tokens << " tokens, run " << run;
        }
        want = got;
      }
    }
}

constexpr WeightFormat kPackedFormats[] = {WeightFormat::kMxfp4, WeightFormat::kNvfp4,
                                           WeightFormat::kInt4Group};
TestLayer PackedLayer(WeightFormat format, bool clamped_with_biases = false) {
  return TestLayer({.format = format,
                    .hidden = 256,
                    .intermediate = 384,
                    .clamped_with_biases = clamped_with_biases,
                    .shared = true});
}

TEST(CudaMoeLayer, FourBitExpertsArePackedOnRequestWhereSizesFit) {
  for (const WeightFormat format : kPackedFormats) {
    TestLayer layer = PackedLayer(format);
    std::vector<kernels::ExpertWeights>& experts = layer.whole.experts;
    EXPECT_TRUE(ChooseArithmetic(experts, DType::kBF16, true, true).packed);
    EXPECT_FALSE(ChooseArithmetic(experts, DType::kBF16, true, false).packed);
    EXPECT_FALSE(ChooseArithmetic(experts, DType::kBF16, false, true).packed);
    EXPECT_FALSE(ChooseArithmetic(experts, DType::kF32, true, true).packed);
    for (kernels::ExpertWeights& e : experts) e = TestLayer::Slice(e, 2, 1);
    EXPECT_TRUE(ChooseArithmetic(experts, DType::kBF16, true, true).packed);
    experts[3].up = Bf16Layer().whole.experts[0].up.Rows(0, 192);
    EXPECT_FALSE(ChooseArithmetic(experts, DType::kBF16, true, true).packed);
  }
  const TestLayer odd({.format = WeightFormat::kMxfp4, .hidden = 96, .intermediate = 160});
  EXPECT_FALSE(ChooseArithmetic(odd.whole.experts, DType::kBF16, true, true).packed);
}

TEST(CudaMoeLayer, PackedExpertsDoNotChangeABit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : kPackedFormats)
    for (const bool clamped_with_biases : {false, true}) {
      const TestLayer layer = PackedLayer(format, clamped_with_biases);
      OnGpu plain(layer, DType::kBF16, {}, 3000, {.packs_experts = true});
      OnGpu packed(layer, DType::kBF16, {}, 3000);
      // The numbers of rows per expert range from few to many. If an expert has many rows, they are
      // processed in blocks, for which weights are dequantized.
      for (const int64_t tokens : {401, 0, 1, 5, 16, 131, 3000})
        EXPECT_TRUE(kernels::SameBits(packed.Forward(layer, tokens), plain.Forward(layer, tokens)))
            << Name(format) << ", " << tokens << " tokens";
    }
}

TEST(CudaMoeLayer, RefusesWhatGpusDoNotDo) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer({});
  const auto refusal = [&](MoeOptions options) {
    return ErrorOf([&] { OnGpu(layer, DType::kF32, options); });
  };
  MoeOptions options;
  options.a2a_backend = "flashinfer";
  options.combine_rows = "rank";
  EXPECT_THAT(refusal(options), ::testing::HasSubstr("--moe-combine-rows rank"));
}

}  // namespace
}  // namespace switchyard::cuda
