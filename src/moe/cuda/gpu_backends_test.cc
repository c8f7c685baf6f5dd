// Exchanges, runners and permutes of GPUs are looked up by name.
#include "moe/gpu_backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "core/error.h"
#include "moe/backends.h"
#include "moe/cuda/builtin_backends.h"
#include "moe/cuda/test_rank.h"

namespace switchyard::cuda {
namespace {

using ::testing::HasSubstr;

// Counts the calls of a runner.
class CountingRunner : public GpuRunner {
 public:
  CountingRunner(std::unique_ptr<GpuRunner> inner, std::atomic<int>* runs)
      : inner_(std::move(inner)), runs_(runs) {}
  RunnerLayout layout() const override { return inner_->layout(); }
  ExpertArithmetic Arithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                              bool packs) const override {
    return inner_->Arithmetic(experts, dtype, packs);
  }
  void Run(const DeviceExperts& experts, const ExpertActivation& activation,
           const GpuGroupedRows& rows, const ProductBuffers& buffers, void* y,
           const PdlStream& chain) override {
    ++*runs_;
    inner_->Run(experts, activation, rows, buffers, y, chain);
  }

 private:
  const std::unique_ptr<GpuRunner> inner_;
  std::atomic<int>* const runs_;
};

// The built-in backends. In addition, an exchange and a runner named "own", which are the built-in
// ones with counters.
struct OwnBackends {
  OwnBackends() : all(std::make_shared<MoeBackends>(BuiltinMoeBackends())) {
    GpuExchangeBackend exchange = all->gpus.exchanges.Find("deepep");
    exchange.make = [this, make = exchange.make](const GpuExchangeContext& context) {
      ++exchanges;
      return make(context);
    };
    all->gpus.exchanges.Add("own", exchange);
    all->gpus.runners.Add(
        "own",
        {.make = [this] { return std::make_unique<CountingRunner>(MakeGroupedMlp(), &runs); },
         .summary = "counts its calls"});
  }

  std::shared_ptr<MoeBackends> all;
  std::atomic<int> exchanges{0}, runs{0};
};

TestLayer Layer() {
  return TestLayer(
      {.format = WeightFormat::kBF16, .hidden = 256, .intermediate = 256, .num_experts = 12});
}

TEST(GpuBackendsTest, ARunnerIsFoundByItsName) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = Layer();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OwnBackends own;
    OnGpu builtin(layer, dtype);
    OnGpu gpu(layer, dtype, {.runner_backend = "own"}, kMaxTokens, {}, nullptr, nullptr, own.all);
    for (const int64_t tokens : {401, 1, 17})
      EXPECT_TRUE(kernels::SameBits(gpu.Forward(layer, tokens), builtin.Forward(layer, tokens)));
    EXPECT_GE(own.runs, 3);
  }
}

TEST(GpuBackendsTest, BothLayoutsOfRunnersGiveTheSameBits) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = Layer();
  OnGpu grouped(layer, DType::kBF16, {.runner_backend = "grouped_mlp"});
  OnGpu masked(layer, DType::kBF16, {.runner_backend = "masked_mlp"});
  for (const int64_t tokens : {401, 1, 17, 130})
    EXPECT_TRUE(kernels::SameBits(masked.Forward(layer, tokens), grouped.Forward(layer, tokens)));
}

TEST(GpuBackendsTest, AnExchangeIsFoundByItsName) {
  SKIP_WITHOUT_GPU();
  const TestLayer layer = Layer();
  constexpr int64_t kTokens = 33;
  const MeshShape mesh{.tp = 2, .ep = 2};
  const auto outputs = [&](const char* exchange, std::shared_ptr<const MoeBackends> backends) {
    const MoeOptions options = {.a2a_backend = exchange};
    std::vector<std::vector<float>> outs(mesh.tp);
    RunRankThreads(
        mesh.tp, RankComm::BytesPerRank(mesh), [&](int r, std::shared_ptr<SharedArena> arena) {
          const auto comm = RankComm::Create(std::move(arena), mesh, r, {kRankTimeout});
          TestRank rank(*comm, DType::kBF16, options, layer.Shape(kTokens), {}, /*down_parts=*/0,
                        backends);
          const MoeLayer moe(layer.config, layer.ShareOf(comm->mesh, true), rank.backend);
          const auto state = moe.MakeState();
          outs[r] = ForwardOnce(moe, *state, *rank.device, layer.Hidden(kTokens), kTokens, 0,
                                [&] { comm->tp->Barrier("before the pass"); });
          comm->tp->Barrier("after the pass");
        });
    EXPECT_TRUE(kernels::SameBits(outs[0], outs[1]));
    return outs[0];
  };
  OwnBackends own;
  EXPECT_TRUE(kernels::SameBits(outputs("own", own.all), outputs("deepep", nullptr)));
  EXPECT_EQ(own.exchanges, 4);  // two modes on two ranks
}

TEST(GpuBackendsTest, ErrorsNameFlagAndAcceptedValues) {
  SKIP_WITHOUT_GPU();
  const auto error_of = [](const MoeOptions& options, std::shared_ptr<const MoeBackends> backends) {
    try {
      OnGpu(Layer(), DType::kBF16, options, 16, {}, nullptr, nullptr, std::move(backends));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of({.runner_backend = "own"}, nullptr),
              HasSubstr("--moe-runner-backend own: no such backend here, want one of: auto, "
                        "grouped_mlp, masked_mlp"));
  const auto without_permutes = std::make_shared<MoeBackends>(BuiltinMoeBackends());
  without_permutes->gpus.permutes = {};
  EXPECT_THAT(error_of({}, without_permutes),
              HasSubstr("--moe-a2a-backend none delivers layout standard, which no permute of GPUs "
                        "converts to layout contiguous of --moe-runner-backend auto"));
}

}  // namespace
}  // namespace switchyard::cuda
