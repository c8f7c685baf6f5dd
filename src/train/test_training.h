// Small models and batches for the tests of this module.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"
#include "kernels/ops.h"
#include "train/model.h"

namespace switchyard::train::testing {

// Runs a test with the instruction set of its parameter. Skips it if the CPU lacks that one.
class IsaTest : public ::testing::TestWithParam<const char*> {
 public:
  void SetUp() override {
    try {
      kernels::SelectIsa(GetParam());
    } catch (const std::exception& e) {
      GTEST_SKIP() << e.what();
    }
  }
  void TearDown() override { kernels::SelectIsa("auto"); }
};

// config.json for each kind of model, small enough for finite differences.
inline std::string SmallConfig(std::string_view kind) {
  constexpr std::string_view kCommon =
      R"("vocab_size": 24, "hidden_size": 12, "num_hidden_layers": 2,
         "max_position_embeddings": 32, "num_attention_heads": 4, "num_key_value_heads": 2, )";
  std::string own;
  if (kind == "mixtral") {
    own = R"("architectures": ["MixtralForCausalLM"], "intermediate_size": 8,
             "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 4,
             "sliding_window": 4)";
  } else if (kind == "qwen3_moe") {
    own = R"("architectures": ["Qwen3MoeForCausalLM"], "intermediate_size": 10,
             "moe_intermediate_size": 6, "num_experts": 8, "num_experts_per_tok": 3, "head_dim": 6,
             "mlp_only_layers": [0], "tie_word_embeddings": true)";
  } else if (kind == "olmoe") {
    own = R"("architectures": ["OlmoeForCausalLM"], "intermediate_size": 6, "num_experts": 4,
             "num_experts_per_tok": 2, "head_dim": 4)";
  } else if (kind == "deepseek_v2") {
    own = R"("architectures": ["DeepseekV2ForCausalLM"], "intermediate_size": 10,
             "moe_intermediate_size": 6, "n_routed_experts": 8, "n_shared_experts": 2,
             "num_experts_per_tok": 3, "topk_method": "group_limited_greedy", "n_group": 4,
             "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 0,
             "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6,
             "norm_topk_prob": false)";
  } else {
    own = R"("architectures": ["DeepseekV3ForCausalLM"], "intermediate_size": 10,
             "moe_intermediate_size": 6, "n_routed_experts": 8, "n_shared_experts": 1,
             "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": true,
             "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "q_lora_rank": 10,
             "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6)";
  }
  return "{" + std::string(kCommon) + own + "}";
}

// The same for "mixtral" and "deepseek_v3", with widths for FP8 products.
inline std::string Fp8Config(std::string_view kind) {
  const std::string own =
      kind == "mixtral"
          ? R"("architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "head_dim": 64,
               "num_key_value_heads": 2, "sliding_window": 8)"
          : R"("architectures": ["DeepseekV3ForCausalLM"], "moe_intermediate_size": 128,
               "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
               "norm_topk_prob": true, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
               "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32,
               "qk_rope_head_dim": 32, "v_head_dim": 32, "num_key_value_heads": 4)";
  return R"({"vocab_size": 24, "hidden_size": 128, "num_hidden_layers": 2,
             "max_position_embeddings": 128, "num_attention_heads": 4, "intermediate_size": 128,
             "num_experts_per_tok": 2, )" +
         own + "}";
}

// Sequences of these lengths with random tokens and targets; about every fifth target is ignored.
inline Batch RandomBatch(const std::vector<int>& lengths, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto token = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)); };
  Batch batch;
  batch.begins = {0};
  for (const int length : lengths) {
    std::vector<int32_t> text(length + 1);
    for (int32_t& t : text) t = token();
    for (int i = 0; i < length; ++i) {
      batch.tokens.push_back(text[i]);
      batch.targets.push_back(random() % 5 == 0 ? Batch::kIgnored : text[i + 1]);
    }
    batch.begins.push_back(batch.begins.back() + length);
  }
  return batch;
}

// Different random experts for the tokens of a batch, [T, layers, top_k]. A `share` of the tokens
// has given experts, the others have -1.
inline std::vector<int32_t> RandomExperts(const ModelConfig& config, int64_t tokens, double share,
                                          uint64_t seed) {
  std::mt19937_64 random(seed);
  const int64_t k = config.moe->router.top_k, layers = config.num_layers();
  std::vector<int32_t> order(config.moe->router.num_experts), experts(tokens * layers * k, -1);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    if (std::uniform_real_distribution<double>()(random) >= share) continue;
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (!config.layers[layer].moe) continue;
      std::ranges::shuffle(order, random);
      std::copy_n(order.begin(), k, experts.begin() + (t * layers + layer) * k);
    }
  }
  return experts;
}

inline StepSize SizeOf(const Batch& batch) {
  StepSize size{.targets = 0.0, .tokens = static_cast<double>(batch.size())};
  for (const int32_t t : batch.targets) size.targets += t != Batch::kIgnored;
  return size;
}

// A model on one rank, with all objects that it borrows. Weights are larger than in a usual
// initialization, so that every path of the gradient contributes.
template <typename T>
struct OneRank {
  OneRank(const ModelConfig& config, const LossOptions& options, int threads = 1)
      : pool(threads), model(config, options, {}, pool) {
    model.Initialise(7, 0.4);
    std::mt19937_64 random(11);
    std::uniform_real_distribution<double> near(-0.3, 0.3);
    for (Parameter<T>* p : model.parameters()) {
      if (p->shape.size() > 1) continue;
      for (T& v : p->value) v = static_cast<T>(static_cast<float>(v + near(random)));
    }
  }

  ThreadPool pool;
  Model<T> model;
};

template <typename T>
std::map<std::string, std::vector<T>> Gradients(Model<T>& model) {
  std::map<std::string, std::vector<T>> all;
  for (const Parameter<T>* p : model.parameters()) all[p->name] = p->gradient;
  return all;
}

// |a - b| / |b|, Euclidean.
template <typename A, typename B>
double RelativeError(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0.0, length = 0.0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    length += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return length == 0.0 ? std::sqrt(difference) : std::sqrt(difference / length);
}

}  // namespace switchyard::train::testing
