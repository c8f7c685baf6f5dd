// A model on a GPU against the same model with plain operations. Skipped without a GPU.
#include "train/device/cuda_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/device.h"
#include "train/device/model.h"
#include "train/optimizer/adamw.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

using testing::Gradients;
using testing::OneRank;
using testing::RandomBatch;
using testing::RelativeError;

// Models whose widths the kernels support: "head" is the head dimension of grouped attention.
std::string Config(const std::string& kind, int head) {
  std::string own;
  if (kind == "mixtral") {
    own =
        R"("architectures": ["MixtralForCausalLM"], "num_local_experts": 6, "sliding_window": 20)";
  } else if (kind == "qwen3_moe") {
    own = R"("architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "mlp_only_layers": [0],
             "moe_intermediate_size": 24, "tie_word_embeddings": true)";
  } else if (kind == "olmoe") {
    own = R"("architectures": ["OlmoeForCausalLM"], "num_experts": 4)";
  } else {
    own = R"("architectures": ["DeepseekV3ForCausalLM"], "moe_intermediate_size": 24,
             "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
             "norm_topk_prob": true, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
             "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 128,
             "qk_rope_head_dim": 64, "v_head_dim": 128)";
  }
  return R"({"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 48, "num_experts_per_tok": 2,
             "max_position_embeddings": 128, "head_dim": )" +
         std::to_string(head) + ", " + own + "}";
}

struct Learned {
  Losses losses;
  std::vector<std::vector<float>> loads;
  std::map<std::string, std::vector<float>> gradients, values;
  double norm = 0;
};

// Two micro-batches and a step of AdamW. `ops`: null: plain operations. `given`: the part of the
// tokens whose experts are given. A rounding error may change the choice of the others. Tokens
// always choose the experts of MTP modules, which models with latent attention have if `modules`.
Learned Learn(const ModelConfig& config, double given, std::unique_ptr<TrainOps<BF16>> ops,
              const DeviceOptions& device = {}, bool modules = true) {
  const bool mtp = modules && config.attention.kind == AttentionConfig::Kind::kLatent;
  const LossOptions options{.balance = {.batch = 0.3, .sequence = 0.2, .z = 0.1},
                            .mtp_layers = mtp ? 1 : 0};
  OneRank<float> one(config, options);
  one.model.Initialise(7, 0.1);
  if (ops == nullptr) ops = MakePlainOps<BF16>(one.pool);
  DeviceRanks alone;
  DeviceModel<BF16> model(one.model, *ops, alone, device);
  for (const std::vector<int>& lengths : {std::vector{70, 1, 33}, std::vector{5}}) {
    Batch batch = RandomBatch(lengths, config.vocab_size, 3);
    batch.experts = testing::RandomExperts(config, batch.size(), given, 5);
    const auto first = std::ranges::find_if(batch.experts, [](int32_t e) { return e >= 0; });
    if (first != batch.experts.end()) *first = -1;  // an empty slot
    model.Learn(batch, {.targets = 90, .tokens = 109});
  }
  Learned learned;
  learned.losses = model.TakeLosses();
  learned.loads = model.TakeLoads();
  model.parameters().GradientsToHost();
  learned.gradients = Gradients(one.model);
  learned.norm = model.parameters().Norm().norm;
  AdamW adam(one.model.parameters(), {});
  model.parameters().Step(0.01, 0.5, &adam);
  model.parameters().ToHost(&adam);
  for (const Parameter<float>* p : one.model.parameters()) learned.values[p->name] = p->value;
  EXPECT_EQ(model.parameters().Norm().norm, 0.0);  // the step clears gradients
  return learned;
}

class CudaOpsTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(CudaOpsTest, LossesAndGradientsAreThoseOfPlainOperations) {
  if (kernels::CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  const auto [kind, head] = GetParam();
  const ModelConfig config = ParseModelConfig(Config(kind, head));
  const Learned want = Learn(config, 1.0, nullptr), got = Learn(config, 1.0, MakeCudaOps(0));
  EXPECT_EQ(got.loads.front(), want.loads.front());
  EXPECT_NEAR(got.losses.main, want.losses.main, 5e-3 * want.losses.main);
  EXPECT_NEAR(got.losses.mtp, want.losses.mtp, 5e-3 * want.losses.mtp);
  EXPECT_NEAR(got.losses.balance, want.losses.balance, 1e-2 * want.losses.balance);
  EXPECT_NEAR(got.norm, want.norm, 2e-2 * want.norm);
  for (const auto& [name, gradient] : want.gradients)
    EXPECT_LT(RelativeError(got.gradients.at(name), gradient), 0.05) << name;
  for (const auto& [name, value] : want.values)
    EXPECT_LT(RelativeError(got.values.at(name), value), 0.05) << name;
  const Learned again = Learn(config, 1.0, MakeCudaOps(0));
  EXPECT_EQ(again.gradients, got.gradients) << "two runs differ";
}

TEST_P(CudaOpsTest, TokensChooseTheirExperts) {
  if (kernels::CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  const auto [kind, head] = GetParam();
  const ModelConfig config = ParseModelConfig(Config(kind, head));
  const Learned want = Learn(config, 0.0, nullptr), got = Learn(config, 0.0, MakeCudaOps(0));
  for (size_t layer = 0; layer < want.loads.size(); ++layer)
    EXPECT_LT(RelativeError(got.loads[layer], want.loads[layer]), 0.05);
  EXPECT_NEAR(got.losses.main, want.losses.main, 1e-2 * want.losses.main);
  EXPECT_NEAR(got.losses.balance, want.losses.balance, 2e-2 * want.losses.balance);
}

// A rounding error in bfloat16 may change a code of the next FP8 product. Such changes add up to a
// part of all rounding errors of FP8: the difference between gradients with FP8 and with bfloat16
// products. The products themselves have smaller bounds in fp8_products_test.cc.
TEST(CudaOps, Fp8LossesAndGradientsAreThoseOfPlainOperations) {
  if (kernels::CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  for (const char* kind : {"mixtral", "deepseek_v3"}) {
    SCOPED_TRACE(kind);
    const ModelConfig config = ParseModelConfig(testing::Fp8Config(kind));
    const DeviceOptions fp8 = {.fp8 = true};
    const Learned want = Learn(config, 1.0, nullptr, fp8, false),
                  got = Learn(config, 1.0, MakeCudaOps(0), fp8, false),
                  bfloat16 = Learn(config, 1.0, nullptr, {}, false);
    EXPECT_EQ(got.loads.front(), want.loads.front());
    EXPECT_NEAR(got.losses.main, want.losses.main, 5e-3 * want.losses.main);
    EXPECT_NEAR(got.norm, want.norm, 4e-2 * want.norm);
    for (const auto& [name, gradient] : want.gradients) {
      const double of_fp8 = RelativeError(bfloat16.gradients.at(name), gradient);
      EXPECT_LT(RelativeError(got.gradients.at(name), gradient), std::max(0.1, 0.75 * of_fp8))
          << name << ", where FP8 changes gradients by " << of_fp8;
    }
    for (const auto& [name, value] : want.values)
      EXPECT_LT(RelativeError(got.values.at(name), value), 0.05) << name;
    const Learned again = Learn(config, 1.0, MakeCudaOps(0), fp8, false);
    EXPECT_EQ(again.gradients, got.gradients) << "two runs differ";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaOpsTest,
                         ::testing::Values(std::tuple{"mixtral", 64}, std::tuple{"mixtral", 16},
                                           std::tuple{"qwen3_moe", 128}, std::tuple{"olmoe", 32},
                                           std::tuple{"deepseek_v3", 64}));

}  // namespace
}  // namespace switchyard::train
