// config.json of published checkpoints, without settings that only training reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/config.h"
#include "model/rope.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using Scoring = RouterConfig::Scoring;
using QkNorm = AttentionConfig::QkNorm;

int64_t CountMoe(const ModelConfig& c) {
  return std::ranges::count_if(c.layers, &LayerConfig::moe);
}

TEST(HubConfig, Mixtral8x7B) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["MixtralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 32000})");
  EXPECT_EQ(c.attention.head_dim, 128);
  EXPECT_EQ(c.moe->intermediate, 14336);
  EXPECT_TRUE(c.moe->router.renormalize);
  EXPECT_EQ(c.rope.theta, 1e6);
}

TEST(HubConfig, Qwen15MoeA27B) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["Qwen2MoeForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
    "max_position_embeddings": 8192, "max_window_layers": 21, "model_type": "qwen2_moe",
    "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 151936, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
    "norm_topk_prob": false, "num_experts": 60, "num_experts_per_tok": 4,
    "shared_expert_intermediate_size": 5632})");
  EXPECT_TRUE(c.attention.qkv_bias);
  EXPECT_FALSE(c.moe->router.renormalize);
  EXPECT_EQ(c.moe->shared_intermediate, 5632);
  EXPECT_EQ(c.layers[0].window, 0);
}

TEST(HubConfig, Qwen2A14B) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["Qwen2MoeForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
    "max_window_layers": 28, "model_type": "qwen2_moe", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 65536, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936, "decoder_sparse_step": 1,
    "moe_intermediate_size": 2560, "norm_topk_prob": false, "num_experts": 64,
    "num_experts_per_tok": 8, "shared_expert_intermediate_size": 20480})",
                                         R"({"bos_token_id": 151643,
    "eos_token_id": [151645, 151643]})");
  EXPECT_EQ(c.attention.kv_heads, 4);
  EXPECT_EQ(c.moe->shared_intermediate, 20480);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(151645, 151643));
}

TEST(HubConfig, Qwen3A3B) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_EQ(c.attention.heads * c.attention.head_dim, 4096);
  EXPECT_EQ(c.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(c.moe->router.renormalize);
  EXPECT_EQ(CountMoe(c), 48);
}

TEST(HubConfig, Qwen3A22BFp8) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_size": 4096,
    "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 94,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 1536,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "torch_dtype": "bfloat16",
    "vocab_size": 151936, "quantization_config": {"activation_scheme": "dynamic",
    "fmt": "e4m3", "modules_to_not_convert": ["lm_head"], "quant_method": "fp8",
    "weight_block_size": [128, 128]}})");
  EXPECT_EQ(c.quantization.rules.at(0).scheme.format, WeightFormat::kFp8Block);
  EXPECT_EQ(c.num_layers(), 94);
}

TEST(HubConfig, Olmoe1B7B) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "clip_qkv": null,
    "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024,
    "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 50304})");
  EXPECT_EQ(c.attention.qk_norm, QkNorm::kWhole);
  EXPECT_EQ(c.moe->intermediate, 1024);
  EXPECT_FALSE(c.moe->router.renormalize);
}

TEST(HubConfig, DeepseekV2AndLite) {
  const ModelConfig lite = ParseModelConfig(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
    "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400})");
  EXPECT_EQ(lite.attention.q_lora_rank, 0);
  EXPECT_EQ(lite.moe->router.num_groups, 1);
  EXPECT_EQ(lite.moe->shared_intermediate, 2816);
  EXPECT_EQ(CountMoe(lite), 26);
  EXPECT_EQ(RopeAttentionFactor(lite.rope), 1.0);
  const double m = 0.1 * 0.707 * std::log(40.0) + 1.0;
  EXPECT_NEAR(lite.attention.scale, m * m / std::sqrt(192.0), 1e-7);

  const ModelConfig v2 = ParseModelConfig(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "bos_token_id": 100000, "eos_token_id": 100001,
    "first_k_dense_replace": 1, "hidden_size": 5120, "intermediate_size": 12288,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1536, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 160,
    "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 128,
    "num_experts_per_tok": 6, "num_hidden_layers": 60, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 16.0, "scoring_func": "softmax",
    "topk_group": 3, "topk_method": "group_limited_greedy", "torch_dtype": "bfloat16",
    "v_head_dim": 128, "vocab_size": 102400})");
  EXPECT_EQ(v2.moe->router.num_groups, 8);
  EXPECT_EQ(v2.moe->router.topk_groups, 3);
  EXPECT_FLOAT_EQ(v2.moe->router.routed_scaling_factor, 16.0f);
}

constexpr const char* kDeepseekV3 = R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 0,
    "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic",
    "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128,
    "vocab_size": 129280})";

TEST(HubConfig, DeepseekV3) {
  const ModelConfig c = ParseModelConfig(kDeepseekV3);
  EXPECT_EQ(c.quantization.rules.at(0).scheme.format, WeightFormat::kFp8Block);
  EXPECT_EQ(CountMoe(c), 58);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  const double m = 0.1 * std::log(40.0) + 1.0;
  EXPECT_NEAR(c.attention.scale, m * m / std::sqrt(192.0), 1e-7);
  const RouterConfig& r = c.moe->router;
  EXPECT_EQ(r.scoring, Scoring::kSigmoid);
  EXPECT_EQ(r.num_groups, 8);
  EXPECT_EQ(r.topk_groups, 4);
  EXPECT_EQ(r.group_score, RouterConfig::GroupScore::kTop2Sum);
  EXPECT_EQ(c.moe->shared_intermediate, 2048);
}

TEST(HubConfig, KimiK2) {
  const char* text = R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 163584,
    "eos_token_id": 163585, "first_k_dense_replace": 1, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
    "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
    "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128,
    "vocab_size": 163840})";
  const ModelConfig c = ParseModelConfig(text);
  EXPECT_EQ(c.moe->router.num_experts, 384);
  EXPECT_EQ(c.moe->router.num_groups, 1);
  EXPECT_EQ(CountMoe(c), 60);
  for (float f : InverseFrequencies(c.rope)) EXPECT_TRUE(std::isfinite(f) && f > 0);
  // Without architectures, model_type selects the family.
  std::string nameless = text;
  nameless.replace(nameless.find("\"architectures\""), 15, "\"unused\"");
  EXPECT_EQ(ParseModelConfig(nameless).architecture, "DeepseekV3ForCausalLM");
}

TEST(HubConfig, GptOss20bAnd120b) {
  const char* text = R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 2, "num_key_value_heads": 8,
    "num_local_experts": 32, "pad_token_id": 199999, "quantization_config": {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
    "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "vocab_size": 201088})";
  const ModelConfig c = ParseModelConfig(
      text, R"({"bos_token_id": 199998, "eos_token_id": [200002, 199999, 200012]})");
  EXPECT_TRUE(c.quantization.mxfp4_blocks());
  EXPECT_EQ(c.layers[0].window, 128);
  EXPECT_EQ(c.layers[1].window, 0);
  EXPECT_NEAR(RopeAttentionFactor(c.rope), 0.1 * std::log(32.0) + 1.0, 1e-12);
  EXPECT_FLOAT_EQ(c.attention.scale, 0.125f);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(200002, 199999, 200012));
  EXPECT_EQ(c.bos_token_id, 199998);
}

TEST(HubConfig, Glm45AndAir) {
  const std::string common = R"({
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "pad_token_id": 151329,
    "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
    "partial_rotary_factor": 0.5, "max_position_embeddings": 131072, "model_type": "glm4_moe",
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 96, "num_key_value_heads": 8, "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 151552, )";
  const ModelConfig big = ParseModelConfig(common + R"("hidden_size": 5120,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "routed_scaling_factor": 2.5, "num_hidden_layers": 92, "first_k_dense_replace": 3,
    "use_qk_norm": true})");
  EXPECT_EQ(big.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(big.rope.rotary_dim, 64);
  EXPECT_EQ(CountMoe(big), 89);
  const ModelConfig air = ParseModelConfig(common + R"("hidden_size": 4096,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128,
    "routed_scaling_factor": 1.0, "num_hidden_layers": 46, "first_k_dense_replace": 1,
    "use_qk_norm": false})");
  EXPECT_EQ(air.attention.qk_norm, QkNorm::kNone);
  EXPECT_TRUE(air.attention.qkv_bias);
  EXPECT_EQ(CountMoe(air), 45);
}

TEST(HubConfig, Llama2AndLlama31) {
  const ModelConfig two = ParseModelConfig(R"({
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "tie_word_embeddings": false,
    "torch_dtype": "float16", "vocab_size": 32000})");
  EXPECT_EQ(two.dtype, DType::kF16);
  EXPECT_EQ(two.rope.theta, 10000.0);
  const ModelConfig three = ParseModelConfig(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 128256})");
  EXPECT_EQ(three.rope.type, RopeConfig::Type::kLlama3);
  EXPECT_THAT(three.eos_token_ids, ElementsAre(128001, 128008, 128009));
}

TEST(HubConfig, DenseQwenAndMistral) {
  const ModelConfig qwen3 = ParseModelConfig(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_TRUE(qwen3.tie_embeddings);
  EXPECT_EQ(qwen3.attention.heads * qwen3.attention.head_dim, 2048);
  const ModelConfig qwen2 = ParseModelConfig(R"({
    "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
    "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 152064})");
  EXPECT_TRUE(qwen2.attention.qkv_bias);
  EXPECT_FALSE(qwen2.attention.output_bias);
  const ModelConfig mistral = ParseModelConfig(R"({
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 32000})");
  EXPECT_EQ(mistral.layers[31].window, 4096);
}

}  // namespace
}  // namespace switchyard
