// Errors for options that MoE layers on GPUs do not support. They also apply to builds without
// CUDA.
#include "moe/gpu_options.h"

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/backends.h"
#include "moe/runners/runner_names.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr MoeShape kShape{
    .hidden = 128, .intermediate = 128, .num_experts = 8, .top_k = 2, .max_tokens = 16};

std::string ErrorOf(const MoeOptions& options, const MoeShape& shape = kShape,
                    const MeshShape& mesh = {.tp = 2, .ep = 2},
                    const GpuMoeBackends& backends = BuiltinGpuBackends()) {
  try {
    cuda::CheckGpuOptions(options, shape, mesh, backends);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

constexpr char kExchanges[] = "deepep, flashinfer, fused, mooncake, none";

TEST(GpuOptionsTest, ScaledInputsCannotShareRowsWithTheSharedExpert) {
  MoeShape shape = kShape;
  shape.has_shared = true;
  EXPECT_EQ(ErrorOf({.a2a_backend = "deepep", .waterfill = true}, shape), "");
  shape.scales_input = true;
  EXPECT_EQ(ErrorOf({.a2a_backend = "deepep"}, shape), "");
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .waterfill = true}, shape),
              HasSubstr("--enable-deepep-waterfill: this model scales the input rows"));
}

TEST(GpuOptionsTest, GpusTakeEveryBackendOfCpus) {
  const MoeBackends backends = BuiltinMoeBackends();
  for (const auto& entry : backends.dispatchers.all())
    EXPECT_EQ(ErrorOf({.a2a_backend = entry.first}), "");
  for (const auto& entry : backends.fused.all())
    EXPECT_EQ(ErrorOf({.a2a_backend = entry.first}), "");
}

TEST(GpuOptionsTest, TheRegistryDecidesWhichBackendsGpusTake) {
  const MoeBackends backends = BuiltinMoeBackends();
  const auto check = [](const std::string& name, bool gpus) {
    EXPECT_EQ(ErrorOf({.a2a_backend = name}),
              gpus ? "" : fmt::format("--moe-a2a-backend {}: GPUs support {}", name, kExchanges));
  };
  const auto on_gpus = [&](const std::string& name) {
    return backends.gpus.exchanges.FindIf(name) != nullptr;
  };
  for (const auto& entry : backends.dispatchers.all()) check(entry.first, on_gpus(entry.first));
  for (const auto& entry : backends.fused.all()) check(entry.first, on_gpus(entry.first));
  for (const auto& entry : backends.runners.all()) {
    EXPECT_NE(backends.gpus.runners.FindIf(entry.first), nullptr);
    EXPECT_EQ(ErrorOf({.runner_backend = entry.first}), "");
  }
}

TEST(GpuOptionsTest, AProgramsOwnBackendsAreTaken) {
  GpuMoeBackends backends = BuiltinGpuBackends();
  backends.exchanges.Add("own", {.summary = "a program's own"});
  backends.runners.Add("own", {.summary = "a program's own"});
  const MoeOptions own = {.a2a_backend = "own", .runner_backend = "own"};
  EXPECT_EQ(ErrorOf(own, kShape, {.tp = 2, .ep = 2}, backends), "");
  EXPECT_EQ(ErrorOf(own), fmt::format("--moe-a2a-backend own: GPUs support {}", kExchanges));
  EXPECT_EQ(ErrorOf({.runner_backend = "own"}),
            "--moe-runner-backend own: no such backend here, want one of: auto, grouped_mlp, "
            "masked_mlp");
}

TEST(GpuOptionsTest, RunnersHaveAPermuteForRowsThatAreExchangedOrNot) {
  const GpuMoeBackends backends = BuiltinGpuBackends();
  for (const DispatchLayout from : {DispatchLayout::kStandard, DispatchLayout::kNormal})
    for (const RunnerLayout to : {RunnerLayout::kContiguous, RunnerLayout::kMasked})
      EXPECT_NE(backends.permutes.Find(from, to), nullptr);
}

TEST(GpuOptionsTest, RunnerNamesOfSglangAreResolved) {
  const GpuMoeBackends backends = BuiltinGpuBackends();
  EXPECT_EQ(ResolveGpuRunner("auto", backends), "grouped_mlp");
  EXPECT_EQ(ResolveGpuRunner("triton", backends), "grouped_mlp");
  EXPECT_EQ(ResolveGpuRunner("flashinfer_cutedsl", backends), "masked_mlp");
  EXPECT_THAT(ErrorOf({.runner_backend = "aiter"}), HasSubstr("needs AMD GPUs"));
}

TEST(GpuOptionsTest, NamesOtherOptions) {
  EXPECT_THAT(ErrorOf({.a2a_backend = "none", .combine_rows = "rank"}),
              HasSubstr("--moe-combine-rows rank: --moe-a2a-backend none"));
  EXPECT_THAT(ErrorOf({.a2a_backend = "flashinfer", .combine_rows = "rank"}),
              HasSubstr("--moe-combine-rows rank: --moe-a2a-backend flashinfer"));
  EXPECT_EQ(ErrorOf({.a2a_backend = "deepep", .combine_rows = "rank"}), "");
}

TEST(GpuOptionsTest, LimitsOfTheKernels) {
  MoeShape shape = kShape;
  shape.num_experts = cuda::kMaxRouterExperts;
  shape.top_k = cuda::kMaxTopK;
  EXPECT_EQ(ErrorOf({}, shape), "");
  shape.num_experts += 2;
  EXPECT_THAT(ErrorOf({}, shape), HasSubstr("num_experts=514"));
  shape.num_experts = cuda::kMaxRouterExperts;
  shape.zero_experts = 256;
  EXPECT_EQ(ErrorOf({}, shape), "");
  shape.zero_experts = 257;
  EXPECT_THAT(ErrorOf({}, shape), HasSubstr("512 experts and 257 experts without computation"));
  shape = kShape;
  shape.top_k = cuda::kMaxTopK + 1;
  EXPECT_THAT(ErrorOf({}, shape), HasSubstr("top_k=33"));
  shape.top_k = cuda::kMaxExchangeTopK;
  EXPECT_EQ(ErrorOf({.a2a_backend = "deepep", .waterfill = true}, shape), "");
  shape.has_shared = true;
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .waterfill = true}, shape),
              HasSubstr("--enable-deepep-waterfill: top_k=32"));
  EXPECT_THAT(ErrorOf({.num_redundant_experts = 2 * cuda::kMaxLocalExperts}),
              HasSubstr("at most 512 per GPU"));
  const int ranks = 2 * cuda::kMaxExchangeRanks;
  EXPECT_EQ(ErrorOf({}, kShape, {.tp = ranks, .ep = ranks}), "");
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep"}, kShape, {.tp = ranks, .ep = ranks}),
              HasSubstr("--ep-size 32"));
}

}  // namespace
}  // namespace switchyard
