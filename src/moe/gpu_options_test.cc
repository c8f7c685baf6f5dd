// What MoE layers on GPUs refuse, in builds without CUDA too.
#include "moe/gpu_options.h"

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr MoeShape kShape{
    .hidden = 128, .intermediate = 128, .num_experts = 8, .top_k = 2, .max_tokens = 16};

std::string ErrorOf(const MoeOptions& options, const MoeShape& shape = kShape,
                    const MeshShape& mesh = {.tp = 2, .ep = 2}) {
  try {
    cuda::CheckGpuOptions(options, shape, mesh);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

TEST(GpuOptionsTest, TheRegistryDecidesWhichBackendsGpusTake) {
  const MoeBackends backends = BuiltinMoeBackends();
  const auto check = [](const std::string& name, bool gpus) {
    EXPECT_EQ(ErrorOf({.a2a_backend = name}),
              gpus ? "" : fmt::format("--moe-a2a-backend {}: GPUs support deepep, none", name));
  };
  for (const auto& [name, backend] : backends.dispatchers.all()) check(name, backend.gpus);
  for (const auto& [name, backend] : backends.fused.all()) check(name, backend.gpus);
  for (const auto& [name, backend] : backends.runners.all()) {
    EXPECT_TRUE(backend.gpus);
    EXPECT_EQ(ErrorOf({.runner_backend = name}), "");
  }
}

TEST(GpuOptionsTest, NamesOtherOptions) {
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .deepep_mode = "fast"}),
              HasSubstr("--deepep-mode fast"));
  EXPECT_THAT(ErrorOf({.a2a_backend = "none", .combine_rows = "rank"}),
              HasSubstr("--moe-combine-rows rank: --moe-a2a-backend none"));
  EXPECT_EQ(ErrorOf({.a2a_backend = "deepep", .combine_rows = "rank"}), "");
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .waterfill = true}),
              HasSubstr("--enable-deepep-waterfill"));
}

TEST(GpuOptionsTest, LimitsOfTheKernels) {
  MoeShape shape = kShape;
  shape.num_experts = cuda::kMaxRouterExperts;
  shape.top_k = cuda::kMaxTopK;
  EXPECT_EQ(ErrorOf({}, shape), "");
  shape.num_experts += 2;
  EXPECT_THAT(ErrorOf({}, shape), HasSubstr("num_experts=514"));
  shape = kShape;
  shape.top_k = cuda::kMaxTopK + 1;
  EXPECT_THAT(ErrorOf({}, shape), HasSubstr("top_k=17"));
  EXPECT_THAT(ErrorOf({.num_redundant_experts = 2 * cuda::kMaxLocalExperts}),
              HasSubstr("at most 512 per GPU"));
  const int ranks = 2 * cuda::kMaxExchangeRanks;
  EXPECT_EQ(ErrorOf({}, kShape, {.tp = ranks, .ep = ranks}), "");
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep"}, kShape, {.tp = ranks, .ep = ranks}),
              HasSubstr("--ep-size 32"));
}

}  // namespace
}  // namespace switchyard
