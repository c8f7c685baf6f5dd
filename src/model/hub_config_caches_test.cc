// config.json of published checkpoints whose layers differ in their caches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/testing.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/rope.h"

namespace switchyard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string RefusalOf(const std::string& config) {
  return ErrorOf([&] { ParseModelConfig(config); });
}

constexpr std::string_view kMimo = R"({
    "architectures": ["MiMoV2FlashForCausalLM"], "add_full_attention_sink_bias": false,
    "add_swa_attention_sink_bias": true, "attention_bias": false, "attention_chunk_size": 128,
    "attention_dropout": 0.0, "attention_value_scale": 0.707, "head_dim": 192,
    "hidden_act": "silu", "hidden_size": 4096, "hybrid_block_size": null,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1], "initializer_range": 0.02,
    "intermediate_size": 16384, "layernorm_epsilon": 1e-05, "max_position_embeddings": 262144,
    "model_type": "mimo_v2_flash", "moe_intermediate_size": 2048,
    "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1], "n_group": 1, "n_routed_experts": 256,
    "n_shared_experts": null, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 8, "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334, "rope_theta": 5000000, "routed_scaling_factor": null,
    "scoring_func": "sigmoid", "sliding_window": 128, "sliding_window_size": 128,
    "swa_head_dim": 192, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8,
    "swa_rope_theta": 10000, "swa_v_head_dim": 128, "tie_word_embeddings": false,
    "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": true,
    "v_head_dim": 128, "vocab_size": 152576})";

// transformers computes frequencies for 7 elements, 0, 2, 4 and 6, and rotates a pair for each.
TEST(HubConfig, OddNumbersOfRotatedElements) {
  json config = json::parse(kMimo);
  config["partial_rotary_factor"] = 0.037;  // 7 of 192
  const ModelConfig c = ParseModelConfig(config.dump());
  for (const auto& [rope, theta] : {std::pair{c.rope, 5e6}, std::pair{*c.window_rope, 1e4}}) {
    EXPECT_EQ(rope.rotary_dim, 8);
    const std::vector<float> frequencies = InverseFrequencies(rope);
    ASSERT_EQ(frequencies.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      const double want = std::pow(theta, -2.0 * static_cast<double>(i) / 7.0);
      EXPECT_NEAR(frequencies[i], want, 1e-6 * want) << i;
    }
  }
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_THAT(RefusalOf(config.dump()),
              HasSubstr("7 of a head's 192 elements would be rotated; want an even number"));
}

TEST(HubConfig, MiMoV2Flash) {
  const ModelConfig c = ParseModelConfig(kMimo);
  EXPECT_EQ(c.unknown_keys, std::vector<std::string>());
  EXPECT_EQ(c.attention.head_dim, 192);
  EXPECT_EQ(c.attention.value_dim(), 128);
  EXPECT_FLOAT_EQ(c.attention.value_scale, 0.707f);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(std::ranges::count_if(c.layers, &LayerConfig::moe), 7);
  EXPECT_EQ(c.moe->shared_intermediate, 0);
  EXPECT_FLOAT_EQ(c.moe->router.routed_scaling_factor, 1.0f);
  for (int64_t i = 0; i < c.num_layers(); ++i) {
    const bool full = i == 0 || i == 5;
    EXPECT_EQ(c.layers[i].window, full ? 0 : 129) << i;
    EXPECT_EQ(c.layers[i].sinks, !full) << i;
    EXPECT_EQ(c.kv_heads(i), full ? 4 : 8) << i;
    EXPECT_EQ(c.rope_of(i).theta, full ? 5e6 : 1e4) << i;
    EXPECT_EQ(c.rope_of(i).rotary_dim, 64) << i;
  }
  const ModelConfig mtp = MtpConfigOf(c);
  EXPECT_EQ(mtp.layers[0].window, 129);
  EXPECT_TRUE(mtp.layers[0].sinks);
  EXPECT_EQ(mtp.rope_of(0).theta, 1e4);
  EXPECT_EQ(LayerPrefix(NamesOf(mtp), mtp.first_layer), "model.mtp.layers.0.");

  const auto error_with = [](std::string_view setting, std::string_view other) {
    std::string text(kMimo);
    return RefusalOf(text.replace(text.find(setting), setting.size(), other));
  };
  EXPECT_THAT(error_with(R"("swa_head_dim": 192)", R"("swa_head_dim": 128)"),
              HasSubstr("swa_head_dim is 128; only 192 is supported"));
  EXPECT_THAT(error_with("0, 1, 1, 1, 1, 0, 1, 1", "0, 1"),
              HasSubstr("hybrid_layer_pattern has 2 entries; want one for each of the 8 layers"));
  EXPECT_THAT(error_with(R"("swa_num_key_value_heads": 8)", R"("swa_num_key_value_heads": 3)"),
              HasSubstr("not a multiple of the 3 KV heads of layers with a sliding window"));
  EXPECT_THAT(error_with(R"("n_shared_experts": null)", R"("n_shared_experts": 1)"),
              HasSubstr("n_shared_experts is 1"));
}

constexpr std::string_view kQwen3Next = R"({
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
    "model_type": "qwen3_next", "moe_intermediate_size": 512, "norm_topk_prob": true,
    "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})";

TEST(HubConfig, Qwen3Next) {
  const ModelConfig c = ParseModelConfig(kQwen3Next);
  EXPECT_EQ(std::ranges::count_if(c.layers, &LayerConfig::linear), 36);
  EXPECT_FALSE(c.layers[3].linear);
  EXPECT_EQ(std::ranges::count_if(c.layers, &LayerConfig::moe), 48);
  EXPECT_TRUE(c.attention.gate_in_q);
  EXPECT_TRUE(c.centred_norms);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.linear->group(), 2);
  EXPECT_TRUE(c.moe->shared_gate);
  EXPECT_TRUE(c.unknown_keys.empty());
}

// Its MTP layer has no state, also if the last layer of the model has one.
TEST(HubConfig, Qwen3NextDraftsWithAttention) {
  ModelConfig c = ParseModelConfig(kQwen3Next);
  c.layers.back().linear = true;
  const ModelConfig mtp = MtpConfigOf(c);
  EXPECT_FALSE(mtp.has_states());
  ASSERT_EQ(mtp.num_layers(), 1);
  EXPECT_TRUE(mtp.layers[0].attends() && mtp.layers[0].moe);
  EXPECT_EQ(LayerPrefix(NamesOf(mtp), mtp.first_layer), "mtp.layers.0.");
}

TEST(HubConfig, Qwen35Moe) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
    "tie_word_embeddings": false, "text_config": {
    "attention_bias": false, "attn_output_gate": true, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "num_attention_heads": 16,
    "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_parameters": {
      "mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
      "rope_theta": 10000000, "rope_type": "default"},
    "shared_expert_intermediate_size": 512, "vocab_size": 248320}})");
  EXPECT_EQ(std::ranges::count_if(c.layers, &LayerConfig::linear), 30);
  EXPECT_TRUE(c.linear->separate);
  EXPECT_TRUE(c.moe->router.renormalize);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  const TensorNames names = NamesOf(c);
  EXPECT_EQ(names.layers, "model.language_model.layers.");
  EXPECT_EQ(names.head, "lm_head.weight");
  EXPECT_EQ(NamesOf(MtpConfigOf(c)).layers, "mtp.layers.");
  EXPECT_TRUE(c.unknown_keys.empty());
}

TEST(HubConfig, Qwen3NextRefusesLayersAndHeadsThatDoNotFit) {
  const auto error_with = [](std::string_view setting, std::string_view other) {
    std::string text(kQwen3Next);
    return RefusalOf(text.replace(text.find(setting), setting.size(), other));
  };
  EXPECT_THAT(error_with(R"("mlp_only_layers": [])", R"("layer_types": ["linear_attention"])"),
              HasSubstr("layer_types has 1 entries; want one for each of the 48 layers"));
  EXPECT_THAT(error_with(R"("linear_num_value_heads": 32)", R"("linear_num_value_heads": 24)"),
              HasSubstr("linear_num_value_heads is 24, not a multiple"));
  EXPECT_THAT(error_with(R"("full_attention_interval": 4)", R"("full_attention_interval": 49)"),
              HasSubstr("want at least one layer with full_attention"));
  EXPECT_THAT(error_with(R"("linear_conv_kernel_dim": 4)", R"("linear_conv_kernel_dim": 17)"),
              HasSubstr("linear_conv_kernel_dim"));
}

constexpr std::string_view kKimiLinear = R"({
    "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "dtype": "bfloat16",
    "eos_token_id": 163586, "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu",
    "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
    "kv_lora_rank": 512, "linear_attn_config": {"full_attn_layers": [4, 7],
      "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6], "num_heads": 32,
      "short_conv_kernel_size": 4},
    "mla_use_nope": true, "model_max_length": 1048576, "model_type": "kimi_linear",
    "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": true,
    "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1,
    "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 7,
    "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
    "pad_token_id": 163839, "q_lora_rank": null, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1,
    "use_cache": true, "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840})";

std::string ErrorWith(std::string_view config, std::string_view setting, std::string_view other) {
  std::string text(config);
  return RefusalOf(text.replace(text.find(setting), setting.size(), other));
}

TEST(HubConfig, KimiLinear) {
  const ModelConfig c = ParseModelConfig(kKimiLinear);
  EXPECT_EQ(c.unknown_keys, std::vector<std::string>());
  for (int64_t i = 0; i < 7; ++i) {
    EXPECT_EQ(c.layers[i].linear, i != 3 && i != 6) << i;
    EXPECT_EQ(c.layers[i].moe, i > 0) << i;
    EXPECT_FALSE(c.layers[i].rope) << i;
  }
  EXPECT_EQ(c.max_position, 1048576);
  EXPECT_EQ(c.linear->rule, kernels::StateRule::kKeyDelta);
  EXPECT_EQ(c.linear->key_heads, 32);
  EXPECT_EQ(c.linear->decays(), 128);
  EXPECT_EQ(c.attention.head_dim, 192);
  EXPECT_TRUE(c.moe->router.renormalize);
  EXPECT_EQ(c.moe->router.top_k, 8);
  EXPECT_EQ(c.moe->shared_intermediate, 1024);
  EXPECT_FLOAT_EQ(c.moe->router.routed_scaling_factor, 2.446f);

  EXPECT_THAT(ErrorWith(kKimiLinear, "[4, 7]", "[4]"),
              HasSubstr("neither this list nor full_attn_layers has layer 7"));
  EXPECT_THAT(ErrorWith(kKimiLinear, "[4, 7]", "[4, 6, 7]"), HasSubstr("layer 6 is named twice"));
  EXPECT_THAT(ErrorWith(kKimiLinear, R"("mla_use_nope": true)", R"("mla_use_nope": false)"),
              HasSubstr("mla_use_nope is false"));
  EXPECT_THAT(ErrorWith(kKimiLinear, R"("num_heads": 32)", R"("num_heads": 32, "gate": 1)"),
              HasSubstr("linear_attn_config.gate is 1"));
}

constexpr std::string_view kLing3 = R"({
    "architectures": ["BailingMoeV3ForCausalLM"], "attention_dropout": 0.0,
    "embedding_dropout": 0.0, "eos_token_id": 156895, "expert_swiglu_limit_list": null,
    "first_k_dense_replace": 1, "gated_attention_proj_granularity_type": "head_wise",
    "group_norm_size": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1536,
    "initializer_range": 0.02, "intermediate_size": 4608, "kda_lower_bound": -5,
    "kda_safe_gate": true, "kv_lora_rank": 512, "layer_group_size": 4, "linear_silu": true,
    "max_position_embeddings": 131072, "max_window_layers": 20, "model_type": "bailing_hybrid",
    "moe_intermediate_size": 512, "moe_router_enable_expert_bias": true,
    "moe_shared_expert_intermediate_size": 512, "mtp_loss_scaling_factor": 0,
    "mtp_use_kda": false, "n_group": 8, "no_kda_lora": true, "norm_topk_prob": true,
    "num_attention_heads": 16, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 24, "num_key_value_heads": 16, "num_kv_heads_for_linear_attn": 0,
    "num_nextn_predict_layers": 0, "num_shared_experts": 1, "output_dropout": 0.0,
    "pad_token_id": 156892, "partial_rotary_factor": 0.5, "q_lora_rank": 256,
    "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_interleave": true, "rope_scaling": null, "rope_theta": 6000000,
    "routed_scaling_factor": 2.5, "router_dtype": "fp32", "scale_router_input": false,
    "score_function": "sigmoid", "share_expert_swiglu_limit_list": null,
    "short_conv_kernel_size": 4, "tie_word_embeddings": false, "topk_group": 4,
    "use_bias": false, "use_kda_lora": false, "use_mla_nope": false, "use_qk_norm": true,
    "use_qkv_bias": false, "v_head_dim": 128, "value_norm": false, "vocab_size": 157184})";

TEST(HubConfig, Ling3) {
  const ModelConfig c = ParseModelConfig(kLing3);
  EXPECT_EQ(c.unknown_keys, std::vector<std::string>());
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(c.layers[i].linear, i % 4 != 3) << i;
    EXPECT_EQ(c.layers[i].moe, i > 0) << i;
  }
  EXPECT_EQ(c.linear->rule, kernels::StateRule::kKeyDelta);
  EXPECT_EQ(c.linear->key_heads, 16);
  EXPECT_EQ(c.linear->key_dim, 128);
  EXPECT_EQ(c.linear->gate_rank, 0);
  EXPECT_EQ(c.linear->bound, -5.0f);
  EXPECT_TRUE(c.attention.gate);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_EQ(c.moe->shared_intermediate, 512);
  EXPECT_EQ(c.moe->router.num_groups, 8);

  const auto error_with = [](std::string_view setting, std::string_view other) {
    return ErrorWith(kLing3, setting, other);
  };
  EXPECT_THAT(error_with(R"("kda_lower_bound": -5)", R"("kda_lower_bound": 0)"),
              HasSubstr("kda_lower_bound is 0; want a negative number"));
  EXPECT_THAT(error_with(R"("layer_group_size": 4)", R"("layer_group_size": 5)"),
              HasSubstr("layer_group_size is 5, which does not divide the 24 layers"));
  EXPECT_THAT(error_with(R"("use_mla_nope": false)", R"("use_mla_nope": true)"),
              HasSubstr("use_mla_nope is true"));
  EXPECT_THAT(
      error_with(R"("expert_swiglu_limit_list": null)", R"("expert_swiglu_limit_list": [4])"),
      HasSubstr("expert_swiglu_limit_list is [4]"));
  EXPECT_THAT(
      error_with(R"("rope_scaling": null)", R"("rope_scaling": {"type": "linear", "factor": 2.0})"),
      HasSubstr("want 1 with a scaled rotary embedding"));
}

constexpr std::string_view kLing25 = R"({
    "architectures": ["BailingMoeV2_5ForCausalLM"], "attention_dropout": 0.0,
    "embedding_dropout": 0.0, "eos_token_id": 156895, "first_k_dense_replace": 1,
    "group_norm_size": 8, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 9216, "kv_lora_rank": 512,
    "layer_group_size": 8, "linear_silu": false, "max_position_embeddings": 131072,
    "max_window_layers": 20, "model_type": "bailing_hybrid", "moe_intermediate_size": 1024,
    "moe_router_enable_expert_bias": true, "moe_shared_expert_intermediate_size": 1024,
    "n_group": 8, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "num_kv_heads_for_linear_attn": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
    "output_dropout": 0.0, "pad_token_id": 156892, "partial_rotary_factor": 0.5,
    "q_lora_rank": 1536, "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_interleave": true, "rope_scaling": null,
    "rope_theta": 6000000, "rotary_dim": 64, "routed_scaling_factor": 2.5,
    "router_dtype": "fp32", "score_function": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "use_bias": false, "use_qk_norm": true,
    "use_qkv_bias": false, "v_head_dim": 128, "vocab_size": 157184})";

TEST(HubConfig, Ling25) {
  const ModelConfig c = ParseModelConfig(kLing25);
  EXPECT_EQ(c.unknown_keys, std::vector<std::string>());
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_EQ(c.layers[i].linear, i % 8 != 7) << i;
    EXPECT_EQ(c.layers[i].moe, i > 0) << i;
    if (c.layers[i].linear) {
      EXPECT_FLOAT_EQ(c.layers[i].decay, 1.0f - static_cast<float>(i - 1) / 31.0f + 1e-5f) << i;
    }
  }
  EXPECT_EQ(c.linear->rule, kernels::StateRule::kFixed);
  EXPECT_EQ(c.linear->key_heads, 32);
  EXPECT_EQ(c.linear->key_dim, 128);
  EXPECT_EQ(c.linear->norm_groups, 8);
  EXPECT_TRUE(c.linear->qk_norm);
  EXPECT_FALSE(c.linear->silu_gate);
  EXPECT_EQ(c.rope_of(0).rotary_dim, 64);
  EXPECT_FALSE(c.rope_of(0).interleaved);
  EXPECT_EQ(c.rope_of(7).rotary_dim, 64);
  EXPECT_TRUE(c.rope_of(7).interleaved);
  EXPECT_EQ(c.rope_of(7).theta, 6e6);
  EXPECT_EQ(c.attention.head_dim, 192);
  EXPECT_EQ(c.moe->shared_intermediate, 1024);
  EXPECT_EQ(NamesOf(c).q_b, "attention.q_b_proj");

  EXPECT_THAT(ErrorWith(kLing25, R"("group_norm_size": 8)", R"("group_norm_size": 7)"),
              HasSubstr("group_norm_size is 7, which does not divide hidden_size 4096"));
  EXPECT_THAT(ErrorWith(kLing25, R"("rotary_dim": 64)", R"("rotary_dim": 32)"),
              HasSubstr("rotary_dim is 32; want 64, as partial_rotary_factor states"));
  EXPECT_THAT(ErrorWith(kLing25, R"("use_bias": false)", R"("use_bias": true)"),
              HasSubstr("use_bias is true"));
  EXPECT_THAT(ErrorWith(kLing25, R"("num_kv_heads_for_linear_attn": 32)",
                        R"("num_kv_heads_for_linear_attn": 3)"),
              HasSubstr("num_kv_heads_for_linear_attn is 3, which does not divide"));
  // Scaled embeddings rotate as many elements in both kinds of layers.
  const std::string yarn = R"("rope_scaling": {"type": "yarn", "factor": 2.0,
      "original_max_position_embeddings": 65536})";
  std::string scaled(kLing25);
  scaled.replace(scaled.find(R"("rope_scaling": null)"), 20, yarn);
  EXPECT_EQ(ParseModelConfig(scaled).rope_of(0).rotary_dim, 64);
  EXPECT_THAT(
      ErrorWith(scaled, R"("partial_rotary_factor": 0.5)", R"("partial_rotary_factor": 0.25)"),
      HasSubstr("linear layers would rotate 32 of a head's 128 elements; want as many as "
                "qk_rope_head_dim 64"));
}

// time_step_limit is written as by Python, with a number that JSON does not have.
constexpr std::string_view kNemotron = R"({
    "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
    "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
    "hybrid_override_pattern": "MEM*E-", "initializer_range": 0.02, "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64, "mamba_hidden_act": "silu",
    "mamba_num_heads": 64, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
    "max_position_embeddings": 262144, "mlp_bias": false, "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h", "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 6,
    "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id": 0,
    "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null,
    "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
    "time_step_limit": [0.0, Infinity], "time_step_max": 0.1, "time_step_min": 0.001,
    "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": false, "use_cache": true,
    "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})";

TEST(HubConfig, NemotronH) {
  const ModelConfig c = ParseModelConfig(kNemotron);
  EXPECT_EQ(c.unknown_keys, std::vector<std::string>());
  ASSERT_EQ(c.num_layers(), 6);
  for (const int64_t i : {0, 2}) EXPECT_TRUE(c.layers[i].mixer && c.layers[i].linear) << i;
  for (const int64_t i : {1, 4}) EXPECT_TRUE(c.layers[i].moe && !c.layers[i].mixer) << i;
  EXPECT_TRUE(c.layers[3].attends() && !c.layers[3].dense());
  EXPECT_TRUE(c.layers[5].dense() && !c.layers[5].mixer);
  EXPECT_EQ(c.activation, kernels::Activation::kRelu2);
  EXPECT_EQ(c.moe->shared_intermediate, 3712);
  EXPECT_EQ(c.linear->group(), 8);
  EXPECT_TRUE(c.linear->conv_bias);
  EXPECT_FLOAT_EQ(c.linear->min_step, 0.001f);
  EXPECT_FLOAT_EQ(c.moe->router.routed_scaling_factor, 2.5f);

  std::string text(kNemotron);
  text.insert(1, R"("moe_latent_size": 1024,)");
  const ModelConfig latent = ParseModelConfig(text);
  EXPECT_EQ(latent.expert_row_width(), 1024);
  EXPECT_TRUE(latent.layers[1].dense_beside);
  EXPECT_EQ(latent.dense_width(1), 3712);
  EXPECT_EQ(latent.dense_width(5), 1856);
  EXPECT_EQ(latent.moe->shared_intermediate, 0);

  text.insert(1, R"("num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",)");
  const ModelConfig super = ParseModelConfig(text), mtp = MtpConfigOf(super);
  EXPECT_TRUE(super.unknown_keys.empty());
  ASSERT_EQ(mtp.num_layers(), 2);
  EXPECT_TRUE(mtp.layers[0].attends() && mtp.layers[1].moe && mtp.layers[1].dense_beside);
  const TensorNames names = NamesOf(mtp);
  EXPECT_EQ(LayerPrefix(names, mtp.first_layer + 1) + names.moe, "mtp.layers.1.mixer");
  EXPECT_EQ(names.mtp + names.mtp_projection, "mtp.layers.0.eh_proj");
  EXPECT_EQ(names.mtp + names.mtp_final_norm, "mtp.layers.1.final_layernorm");

  EXPECT_THAT(ErrorWith(kNemotron, "MEM*E-", "MEM?E-"), HasSubstr("holds \"?\""));
  EXPECT_THAT(ErrorWith(kNemotron, "MEM*E-", "MEMME-"),
              HasSubstr("want at least one layer with full_attention"));
  EXPECT_THAT(ErrorWith(kNemotron, R"("mlp_bias": false)", R"("mlp_bias": true)"),
              HasSubstr("mlp_bias is true"));
  EXPECT_THAT(ErrorWith(kNemotron, "relu2", "silu"), HasSubstr("mlp_hidden_act"));
}

// The keys of DeepSeek's own program, with 5 layers. The last ratio is that of the MTP layer.
TEST(HubConfig, DeepSeekV4Flash) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "bos_token_id": 0, "eos_token_id": 1,
    "compress_ratios": [0, 0, 4, 128, 4, 0], "compress_rope_theta": 160000, "expert_dtype": "fp4",
    "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512,
    "hidden_act": "silu", "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 512, "initializer_range": 0.02, "max_position_embeddings": 1048576,
    "model_type": "deepseek_v4", "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 6, "num_hash_layers": 3, "num_hidden_layers": 5,
    "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 8, "o_lora_rank": 1024,
    "q_lora_rank": 1024, "qk_rope_head_dim": 64, "quantization_config": {
      "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
      "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {
      "beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536,
      "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus", "sliding_window": 128, "swiglu_limit": 10.0,
    "tie_word_embeddings": false, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "use_cache": true, "vocab_size": 129280})");
  EXPECT_TRUE(c.unknown_keys.empty());
  const std::vector<int> ratios = {0, 0, 4, 128, 4};
  for (size_t i = 0; i < ratios.size(); ++i) {
    EXPECT_EQ(c.layers[i].compress, ratios[i]);
    EXPECT_EQ(c.layers[i].overlaps, ratios[i] == 4);
    EXPECT_EQ(c.layers[i].window, 128);
    EXPECT_EQ(c.layers[i].by_token, i < 3);
  }
  EXPECT_EQ(c.streams->count, 4);
  EXPECT_EQ(c.attention.qk_rope_head_dim, 64);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(c.rope.theta, 160000);
  EXPECT_EQ(c.rope.attention_factor, 1.0);
  EXPECT_EQ(c.window_rope->type, RopeConfig::Type::kDefault);
  EXPECT_EQ(c.window_rope->theta, 10000);
  EXPECT_EQ(c.quantization.rules.size(), 2u);
  EXPECT_EQ(c.quantization.rules[0].scheme.format, WeightFormat::kMxfp4);
  EXPECT_EQ(c.quantization.rules[1].scheme.format, WeightFormat::kFp8Block);
  const ModelConfig mtp = MtpConfigOf(c);
  EXPECT_EQ(mtp.layers[0].window, 128);
  EXPECT_FALSE(mtp.has_states() || mtp.layers[0].by_token);
  EXPECT_EQ(mtp.target_row_width(), 4 * 4096);
  const TensorNames names = NamesOf(mtp);
  EXPECT_EQ(LayerPrefix(names, mtp.first_layer) + names.q_a, "mtp.0.attn.wq_a");
  EXPECT_EQ(names.mtp + names.mtp_embedding_projection, "mtp.0.e_proj");
  EXPECT_EQ(names.mtp + names.mtp_projection, "mtp.0.h_proj");
  EXPECT_EQ(names.head_streams, "mtp.0.hc_head_");
}

}  // namespace
}  // namespace switchyard
