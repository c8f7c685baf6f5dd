// MoE layers of a GPU whose experts are partly on CPUs. Ranks are threads of one process.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "comm/device/cuda/host_link.h"
#include "kernels/cuda/device/cuda_device.h"
#include "moe/cuda/router/test_observer.h"
#include "moe/cuda/testing.h"

namespace switchyard::cuda {
namespace {

struct HostExperts {
  const TestLayer& layer;
  DType dtype = DType::kF32;
  MoeOptions options;
  MeshShape mesh;
  std::vector<TestPass> passes;
  bool captures = false;                // whether each pass is captured and replayed twice
  int64_t padding = 0;                  // the last rows of each pass are padding
  RoutingObserver* observer = nullptr;  // of the rank on the GPU; passes have the numbers 1, 2, …

  // The outputs of rank 0, which is on a GPU.
  std::vector<float> OnDevice(RankComm& comm) const {
    const MoeShape shape = ShapeFor(layer, passes);
    const auto device = TestDevice(dtype, shape.max_tokens);
    HostLink link(*comm.memory, std::chrono::seconds(30));
    CudaDevice& gpu = CudaDevice::From(*device);
    gpu.AddCheck([&link] { link.CheckTimeouts(); });
    gpu.SetWait([&link](cudaEvent_t event) { link.Wait(event); });
    SingleMember alone;
    DeviceMoeContext context;
    context.mesh = comm.mesh;
    context.groups = {.tp = &alone, .ep = &alone, .moe_tp = &alone, .attn_tp = &alone};
    context.link = &link;
    context.device = device.get();
    const auto backend = MakeCudaMoe(options, shape, context);
    backend->Observe(observer);
    const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, /*shared_whole=*/true), backend);
    if (options.stream_tokens > 0) {
      moe.ReserveStreams(layer.whole.experts[0]);
      ThreadPool threads(3);
      threads.Run(layer.spec.num_experts, [&](int64_t e) {
        moe.KeepForStreams(static_cast<int32_t>(e), layer.whole.experts[e]);
      });
      moe.PinStreams();
    }
    const auto state = moe.MakeState();
    const size_t bytes = shape.max_tokens * layer.spec.hidden * sizeof(float);
    const auto x = device->Allocate(bytes), y = device->Allocate(bytes);
    std::vector<float> all;
    uint64_t key = 0;
    for (const TestPass& pass : passes) {
      const std::vector<float> hidden = layer.Hidden(pass.total(), pass.seed);
      std::vector<float> out(hidden.size(), NAN);
      device->CopyIn(x.get(), hidden.data(), hidden.size() * sizeof(float));
      state->pass = ++key;
      state->BeginPass(pass.total() - padding, 0);
      for (int i = 0; i < (captures ? 2 : 1); ++i) {
        device->CopyIn(y.get(), out.data(), out.size() * sizeof(float));
        device->Run(captures ? key : 0, [&] {
          moe.Forward(*state, static_cast<const float*>(x.get()), {pass.tokens, pass.decoding},
                      static_cast<float*>(y.get()));
        });
      }
      device->CopyOut(out.data(), y.get(), out.size() * sizeof(float));
      state->EndPass();
      state->ReportRouting(key);
      all.insert(all.end(), out.begin(), out.end());
    }
    gpu.ClearGraphs();
    return all;
  }

  std::vector<float> Run() const {
    std::vector<TestPass> on_cpus;
    for (const TestPass& pass : passes)
      for (int i = 0; i < (captures ? 2 : 1); ++i) on_cpus.push_back(pass);
    std::vector<float> outputs;
    RunMoeRanks(options, ShapeFor(layer, passes), mesh, [&](RankComm& comm, ThreadPool& pool) {
      if (comm.mesh.rank() == 0) {
        outputs = OnDevice(comm);
      } else {
        RunPassesOnRank(layer, options, on_cpus, comm, pool);
      }
    });
    return outputs;
  }
};

// Rank 0 of `slots` has attention, the others have experts only.
MeshShape MeshOf(std::vector<int32_t> slots) {
  const auto ranks = static_cast<int>(slots.size());
  return {.tp = ranks,
          .ep = ranks,
          .dp = ranks,
          .dense_tp = 1,
          .expert_ranks = ranks - 1,
          .expert_slots = std::move(slots)};
}

MoeOptions OptionsFor(DType dtype, bool fp8 = false) {
  MoeOptions options;
  options.a2a_backend = "deepep";
  options.deepep_mode = "normal";
  options.combine_long_seq = true;
  options.host_experts = true;
  options.row_dtype = dtype;
  options.dispatcher_output_dtype = fp8 ? "fp8" : "bf16";
  return options;
}

std::vector<TestPass> PassesOf(int ranks, const std::vector<int64_t>& totals, bool decode) {
  std::vector<TestPass> passes;
  for (const int64_t total : totals) {
    TestPass pass{std::vector<int64_t>(ranks), std::vector<int64_t>(ranks),
                  static_cast<uint32_t>(passes.size() + 1)};
    pass.tokens[0] = total;
    if (decode) pass.decoding = pass.tokens;
    passes.push_back(pass);
  }
  return passes;
}

void ExpectNear(const HostExperts& run, double most) {
  EXPECT_LT(RelativeError(run.Run(), ReferencePasses(run.layer, run.options, run.passes)), most);
}

MoeOptions Streaming(MoeOptions options, int64_t tokens) {
  options.stream_tokens = tokens;
  return options;
}

// Experts of float32, with and without a shared expert, on several divisions among ranks.
void ExpectNearOnAllRanks(const MoeOptions& options, const std::vector<int64_t>& totals) {
  for (const bool shared : {false, true}) {
    const TestLayer layer(
        {.hidden = 256, .intermediate = 256, .num_experts = 12, .shared = shared});
    for (const std::vector<int32_t>& slots :
         {std::vector{5, 7}, std::vector{1, 11}, std::vector{11, 1}, std::vector{2, 4, 6}}) {
      SCOPED_TRACE(fmt::format("{} experts on the GPU, {} ranks", slots[0], slots.size()));
      ExpectNear({.layer = layer,
                  .options = options,
                  .mesh = MeshOf(slots),
                  .passes = PassesOf(static_cast<int>(slots.size()), totals, false)},
                 1e-5);
    }
  }
}

// Experts of bfloat16, and experts of FP8 blocks, whose rows are rounded to FP8.
void ExpectRoundedRowsNear(int64_t stream_tokens, bool shared, const std::vector<int64_t>& totals) {
  const auto expect_near = [&](const TestLayer& layer, bool fp8, double most) {
    ExpectNear({.layer = layer,
                .dtype = DType::kBF16,
                .options = Streaming(OptionsFor(DType::kBF16, fp8), stream_tokens),
                .mesh = MeshOf({5, 7}),
                .passes = PassesOf(2, totals, false)},
               most);
  };
  expect_near(TestLayer({.format = WeightFormat::kBF16,
                         .hidden = 256,
                         .intermediate = 256,
                         .num_experts = 12,
                         .shared = shared}),
              /*fp8=*/false, 2e-2);
  expect_near(TestLayer({.format = WeightFormat::kFp8Block,
                         .activation = ActivationFormat::kFp8Group,
                         .hidden = 256,
                         .intermediate = 256,
                         .num_experts = 12}),
              /*fp8=*/true, 4e-2);
}

class CudaHostExperts : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

TEST_F(CudaHostExperts, ExactModeIsNearTheReference) {
  ExpectNearOnAllRanks(OptionsFor(DType::kF32), {130, 1, 0, 7, 40});
}

TEST_F(CudaHostExperts, Bf16AndFp8RowsAreNearTheReference) {
  ExpectRoundedRowsNear(/*stream_tokens=*/0, /*shared=*/false, {130, 1, 7});
}

TEST_F(CudaHostExperts, OneSideMayHaveAllRows) {
  for (const int hot : {0, 11}) {
    const TestLayer layer(
        {.hidden = 256, .intermediate = 256, .num_experts = 12, .top_k = 1, .hot_expert = hot});
    ExpectNear({.layer = layer,
                .options = OptionsFor(DType::kF32),
                .mesh = MeshOf({6, 6}),
                .passes = PassesOf(2, {33, 2}, true)},
               1e-5);
  }
  const TestLayer none({.hidden = 256, .num_experts = 12, .no_experts = true});
  ExpectNear({.layer = none,
              .options = OptionsFor(DType::kF32),
              .mesh = MeshOf({6, 6}),
              .passes = PassesOf(2, {33, 2}, true)},
             1e-5);
}

TEST_F(CudaHostExperts, LongPassesTakeSeveralRounds) {
  const TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 12, .shared = true});
  MoeOptions options = OptionsFor(DType::kF32);
  options.long_seq_per_round_tokens = 16;
  ExpectNear({.layer = layer,
              .options = options,
              .mesh = MeshOf({5, 7}),
              .passes = PassesOf(2, {50, 16, 17, 3}, false)},
             1e-5);
}

TEST_F(CudaHostExperts, CapturedPassesGiveTheBitsOfOthers) {
  const TestLayer layer({.format = WeightFormat::kBF16,
                         .hidden = 256,
                         .intermediate = 256,
                         .num_experts = 12,
                         .shared = true,
                         .router = WeightFormat::kBF16});
  HostExperts run = {.layer = layer,
                     .dtype = DType::kBF16,
                     .options = OptionsFor(DType::kBF16),
                     .mesh = MeshOf({5, 7}),
                     .passes = PassesOf(2, {1, 8, 32, 2}, true)};
  const std::vector<float> plain = run.Run();
  run.captures = true;
  EXPECT_TRUE(kernels::SameBits(run.Run(), plain));
}

TEST_F(CudaHostExperts, RowsOfPaddingHaveNoExperts) {
  const TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 12});
  const HostExperts run = {.layer = layer,
                           .options = OptionsFor(DType::kF32),
                           .mesh = MeshOf({5, 7}),
                           .passes = PassesOf(2, {8}, true),
                           .captures = true,
                           .padding = 3};
  const std::vector<float> got = run.Run();
  std::vector<float> want = ReferencePasses(layer, run.options, run.passes);
  std::fill(want.end() - run.padding * layer.spec.hidden, want.end(), 0.0f);
  EXPECT_LT(RelativeError(got, want), 1e-5);
}

// Replicas of an expert on both sides: the GPU takes the rows of its own copy.
TEST_F(CudaHostExperts, PlacementsMayHaveReplicas) {
  TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 8});
  layer.config.placement = ExpertPlacement(8, {7, 2, 5, 0, 1, 2, 3, 4, 5, 6, 7});
  MoeOptions options = OptionsFor(DType::kF32);
  options.num_redundant_experts = 3;
  ExpectNear({.layer = layer,
              .options = options,
              .mesh = MeshOf({3, 8}),
              .passes = PassesOf(2, {64, 3}, false)},
             1e-5);
}

// Passes of at least 32 tokens stream, those between them do not. Groups have three experts.
TEST_F(CudaHostExperts, StreamedExpertsAreNearTheReference) {
  ExpectNearOnAllRanks(Streaming(OptionsFor(DType::kF32), 32), {130, 1, 0, 32, 31, 40, 401});
}

TEST_F(CudaHostExperts, StreamedBf16AndFp8ExpertsAreNearTheReference) {
  ExpectRoundedRowsNear(/*stream_tokens=*/32, /*shared=*/true, {130, 1, 70});
}

TEST_F(CudaHostExperts, LongPassesStreamInEachRound) {
  const TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 12, .shared = true});
  MoeOptions options = Streaming(OptionsFor(DType::kF32), 12);
  options.long_seq_per_round_tokens = 16;
  ExpectNear({.layer = layer,
              .options = options,
              .mesh = MeshOf({5, 7}),
              .passes = PassesOf(2, {50, 16, 33, 3}, false)},
             1e-5);
}

TEST_F(CudaHostExperts, StreamsFindExpertsInAnyPlacement) {
  TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 8});
  layer.config.placement = ExpertPlacement(8, {7, 2, 5, 0, 1, 2, 3, 4, 5, 6, 7});
  MoeOptions options = Streaming(OptionsFor(DType::kF32), 32);
  options.num_redundant_experts = 3;
  ExpectNear({.layer = layer,
              .options = options,
              .mesh = MeshOf({3, 8}),
              .passes = PassesOf(2, {64, 3, 64}, false)},
             1e-5);
  const TestLayer hot(
      {.hidden = 256, .intermediate = 256, .num_experts = 12, .top_k = 1, .hot_expert = 11});
  ExpectNear({.layer = hot,
              .options = Streaming(OptionsFor(DType::kF32), 32),
              .mesh = MeshOf({6, 6}),
              .passes = PassesOf(2, {33, 2}, false)},
             1e-5);
}

TEST_F(CudaHostExperts, ObserversKnowWhichPassesStream) {
  const TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 12});
  SummingObserver observer;
  HostExperts run = {.layer = layer,
                     .options = Streaming(OptionsFor(DType::kF32), 32),
                     .mesh = MeshOf({5, 7}),
                     .passes = PassesOf(2, {40, 3, 33, 31}, false)};
  run.observer = &observer;
  run.Run();
  EXPECT_EQ(observer.counted_passes, (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(observer.streamed_passes, (std::vector<uint64_t>{1, 3}));
}

// A pass that only decodes may be a CUDA graph, so it does not stream.
TEST_F(CudaHostExperts, CapturedPassesDoNotStream) {
  const TestLayer layer({.hidden = 256, .intermediate = 256, .num_experts = 12});
  HostExperts run = {.layer = layer,
                     .options = Streaming(OptionsFor(DType::kF32), 8),
                     .mesh = MeshOf({5, 7}),
                     .passes = PassesOf(2, {32, 8}, true)};
  const std::vector<float> plain = run.Run();
  run.captures = true;
  EXPECT_TRUE(kernels::SameBits(run.Run(), plain));
}

}  // namespace
}  // namespace switchyard::cuda
