// Layers of a captured pass start early, by programmatic dependent launch.
#include "moe/cuda/testing.h"

namespace switchyard::cuda {
namespace {

constexpr int kLayers = 6;

// Returns the outputs of kLayers layers in `passes` passes. Each layer has its own input.
std::vector<float> RunLayers(const OnGpu& gpu, const TestLayer& layer, int64_t tokens, int passes,
                             uint64_t key) {
  const size_t bytes = tokens * layer.spec.hidden * sizeof(float);
  const std::vector<int64_t> counts = {tokens};
  std::vector<std::shared_ptr<void>> x, y;
  for (int i = 0; i < kLayers; ++i) {
    x.push_back(gpu.device->Allocate(bytes));
    y.push_back(gpu.device->Allocate(bytes));
  }
  std::vector<float> all, out(tokens * layer.spec.hidden);
  for (int pass = 0; pass < passes; ++pass) {
    for (int i = 0; i < kLayers; ++i) {
      const auto hidden = layer.Hidden(tokens, 10 * pass + i);
      gpu.device->CopyIn(x[i].get(), hidden.data(), bytes);
    }
    gpu.device->Run(key, [&] {
      for (int i = 0; i < kLayers; ++i)
        gpu.moe->Forward(*gpu.state, static_cast<float*>(x[i].get()), {counts, counts},
                         static_cast<float*>(y[i].get()));
    });
    for (int i = 0; i < kLayers; ++i) {
      gpu.device->CopyOut(out.data(), y[i].get(), bytes);
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  return all;
}

// The GEMM of a layer may start before the layer's rows are ordered. The outputs must not change.
TEST(CudaMoeChain, EarlyLaunchChangesNoBit) {
  SKIP_WITHOUT_GPU();
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    const bool fp8 = format == WeightFormat::kFp8Block;
    const TestLayer layer(
        {.format = format,
         .activation = fp8 ? ActivationFormat::kFp8Group : ActivationFormat::kNone,
         .hidden = 512,
         .intermediate = 256,
         .num_experts = 24,
         .top_k = 4,
         .router = WeightFormat::kBF16});
    const MoeOptions options = {.fp8_group_activations = fp8};
    const OnGpu plain(layer, DType::kBF16, options, kMaxTokens, {.fused = true});
    const OnGpu fused(layer, DType::kBF16, options);
    uint64_t key = 0;
    for (const int64_t tokens : {1, 7, 16, 17, 60, 300}) {
      const std::vector<float> want = RunLayers(plain, layer, tokens, 4, 0);
      EXPECT_TRUE(kernels::SameBits(RunLayers(fused, layer, tokens, 4, ++key), want))
          << (fp8 ? "FP8, " : "bf16, ") << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace switchyard::cuda
