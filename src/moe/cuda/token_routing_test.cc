// A MoE layer as in DeepSeek-V4 on a GPU, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "moe/cuda/testing.h"
#include "moe/layer.h"

namespace switchyard::cuda {
namespace {

void ExpectReference(const TestLayer& layer, OnGpu& gpu, const std::vector<float>& hidden,
                     const std::vector<float>& router_rows) {
  const int64_t tokens = std::ssize(hidden) / layer.spec.hidden;
  std::vector<float> want(hidden.size());
  MoeReference(layer.config, layer.whole, {}, hidden.data(), tokens, want.data(),
               /*shared_dispatched=*/false, router_rows.empty() ? nullptr : router_rows.data());
  const std::vector<float> got = ForwardOnce(*gpu.moe, *gpu.state, *gpu.device, hidden, tokens,
                                             /*decoding=*/0, {}, router_rows);
  EXPECT_LT(RelativeError(got, want), 1e-5) << tokens;
}

// As in DeepSeek-V4: the scores, experts by token ids, and limited inputs of the activation.
TEST(CudaTokenRoutingTest, ExpertsByTokenIdWithLimitedActivation) {
  SKIP_WITHOUT_GPU();
  TestLayer layer({.hidden = 64,
                   .intermediate = 96,
                   .num_experts = 16,
                   .top_k = 4,
                   .shared = true,
                   .router = WeightFormat::kBF16});
  layer.config.activation = kernels::Activation::kSwiGluLimited;
  layer.config.swiglu_limit = 0.5f;
  const std::vector<float> correction = kernels::Random(9).Normal(16, 0.1f);
  layer.config.router = {.num_experts = 16,
                         .top_k = 4,
                         .scoring = RouterConfig::Scoring::kSqrtSoftplus,
                         .renormalize = true,
                         .routed_scaling_factor = 1.5f};
  layer.whole.router.correction_bias = correction.data();
  OnGpu selecting(layer, DType::kF32);
  for (const int64_t tokens : {401, 1, 5, 131})
    ExpectReference(layer, selecting, layer.Hidden(tokens), {});

  constexpr int64_t kIds = 30;
  kernels::Random random(3);
  std::vector<int32_t> table;
  for (int64_t id = 0; id < kIds; ++id) {
    const std::vector<int32_t> experts = random.Shuffled(16);
    table.insert(table.end(), experts.begin(), experts.begin() + 4);
  }
  layer.whole.router.correction_bias = nullptr;
  layer.whole.router.token_experts = table.data();
  layer.whole.router.token_rows = kIds;
  layer.config.router.by_token = true;
  const int64_t width = layer.config.router_width = layer.spec.hidden + 1;
  OnGpu gpu(layer, DType::kF32);
  for (const int64_t tokens : {401, 0, 1, 5, 131}) {
    const std::vector<float> hidden = layer.Hidden(tokens);
    std::vector<float> rows(tokens * width);
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(&hidden[t * layer.spec.hidden], layer.spec.hidden, &rows[t * width]);
      rows[(t + 1) * width - 1] = static_cast<float>(random.Below(kIds));
    }
    ExpectReference(layer, gpu, hidden, rows);
  }
}

}  // namespace
}  // namespace switchyard::cuda
