// config.json of checkpoints published in 2025 and 2026, without settings that only training reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/rope.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using Scoring = RouterConfig::Scoring;
using QkNorm = AttentionConfig::QkNorm;

int64_t CountMoe(const ModelConfig& c) {
  return std::ranges::count_if(c.layers, &LayerConfig::moe);
}
int64_t CountRotated(const ModelConfig& c) {
  return std::ranges::count_if(c.layers, &LayerConfig::rope);
}
std::string ErrorOf(const std::string& config) {
  try {
    ParseModelConfig(config);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(HubConfig, Granite31A800M) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["GraniteMoeForCausalLM"], "attention_bias": false,
    "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0,
    "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 512,
    "logits_scaling": 6.0, "max_position_embeddings": 131072, "model_type": "granitemoe",
    "num_attention_heads": 24, "num_experts_per_tok": 8, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 40, "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 49155})");
  EXPECT_EQ(c.moe->router.scoring, Scoring::kTopKSoftmax);
  EXPECT_FLOAT_EQ(c.attention.scale, 0.015625f);
  EXPECT_FLOAT_EQ(c.embedding_scale, 12.0f / 0.22f);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-6f / (0.22f * 0.22f));
  EXPECT_FLOAT_EQ(c.logit_scale, 1.0f / 6.0f);
  EXPECT_EQ(c.moe->shared_intermediate, 0);
  EXPECT_TRUE(c.unknown_keys.empty());
}

constexpr const char* kHunyuan = R"({
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_bias": false,
    "attention_head_dim": 128, "bos_token_id": 1, "cla_share_factor": 2, "eod_token_id": 127967,
    "eos_token_id": 127960, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 3072, "max_position_embeddings": 32768, "mlp_bias": false,
    "model_type": "hunyuan_v1_moe", "moe_intermediate_size": [3072, 3072],
    "moe_layer_num_skipped": 0, "moe_topk": [8, 8], "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 64, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "num_shared_expert": [1, 1], "rms_norm_eps": 1e-05,
    "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"}, "rope_theta": 10000.0,
    "routed_scaling_factor": 1.0, "tie_word_embeddings": true, "use_cla": false,
    "use_mixed_mlp_moe": true, "use_mla": false, "use_qk_norm": true,
    "torch_dtype": "bfloat16", "vocab_size": 128167})";

TEST(HubConfig, HunyuanA13B) {
  const ModelConfig c = ParseModelConfig(kHunyuan);
  EXPECT_EQ(c.attention.head_dim, 128);
  EXPECT_TRUE(c.attention.norm_after_rope);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::kDefault);
  EXPECT_NEAR(c.rope.theta, 10000.0 * std::pow(1000.0, 128.0 / 126.0), 1.0);
  EXPECT_EQ(c.moe->router.top_k, 8);
  EXPECT_TRUE(c.moe->router.renormalize);
  EXPECT_EQ(c.moe->shared_intermediate, 3072);
}

TEST(HubConfig, HunyuanRefusesLayersThatDiffer) {
  std::string text = kHunyuan;
  text.replace(text.find("[8, 8]"), 6, "[8, 4]");
  EXPECT_THAT(ErrorOf(text), HasSubstr("moe_topk differs between layers (8 and 4)"));
}

TEST(HubConfig, KimiK25) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["KimiK25ForConditionalGeneration"], "bos_token_id": 163584,
    "eos_token_id": 163586, "media_placeholder_token_id": 163605, "model_type": "kimi_k25",
    "tie_word_embeddings": false, "vision_config": {"hidden_size": 1152}, "text_config": {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "bos_token_id": 163584,
    "dtype": "bfloat16", "eos_token_id": 163585, "first_k_dense_replace": 1,
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 262144, "model_type": "kimi_k2", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {
    "group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": true, "type": "int"}}},
    "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*",
    "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "quant_method": "compressed-tensors"}, "rms_norm_eps": 1e-05, "rope_scaling": {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840}})");
  EXPECT_EQ(c.architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(NamesOf(c).layers, "language_model.model.layers.");
  EXPECT_EQ(NamesOf(c).head, "language_model.lm_head.weight");
  EXPECT_EQ(CountMoe(c), 60);
  EXPECT_EQ(c.moe->router.num_experts, 384);
  EXPECT_FALSE(c.quantization.method.empty());
  EXPECT_THAT(c.eos_token_ids, ::testing::ElementsAre(163585, 163586));
}

TEST(HubConfig, AWrapperWithoutItsDecoderIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"architectures": ["KimiK25ForConditionalGeneration"]})"),
              HasSubstr("text_config is missing"));
}

constexpr const char* kExaone = R"({
    "architectures": ["ExaoneMoEForCausalLM"], "bos_token_id": 1, "eos_token_id": 53,
    "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144,
    "intermediate_size": 18432, "max_position_embeddings": 262144, "model_type": "exaone_moe",
    "moe_intermediate_size": 2048, "n_group": 1, "norm_topk_prob": true,
    "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_theta": 1000000,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "sliding_window": 128,
    "sliding_window_pattern": "LLLG", "tie_word_embeddings": false, "topk_group": 1,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "vocab_size": 153600})";

// Published configurations also list the kind of each layer.
TEST(HubConfig, KExaonesListOfMoeLayersRepeatsOtherKeys) {
  std::string layers = "false";
  for (int i = 1; i < 48; ++i) layers += ", true";
  const auto with = [](const std::string& list) {
    std::string config = kExaone;
    return config.insert(config.rfind('}'), ", \"is_moe_layer\": [" + list + "]");
  };
  EXPECT_EQ(CountMoe(ParseModelConfig(with(layers))), 47);
  EXPECT_THAT(ErrorOf(with("true" + layers.substr(5))), HasSubstr("is_moe_layer"));
}

TEST(HubConfig, Qwen3Coder30B) {
  const std::string config = R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 5472, "max_position_embeddings": 262144, "max_window_layers": 28,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "qkv_bias": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.0,
    "shared_expert_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true,
    "use_sliding_window": false, "vocab_size": 151936})";
  EXPECT_EQ(CountMoe(ParseModelConfig(config)), 48);
  std::string without = config;
  without.replace(without.find("\"use_qk_norm\": true"), 19, "\"use_qk_norm\": false");
  EXPECT_THAT(ErrorOf(without), HasSubstr("use_qk_norm"));
}

TEST(HubConfig, KExaone236B) {
  const ModelConfig c = ParseModelConfig(kExaone);
  EXPECT_EQ(CountMoe(c), 47);
  EXPECT_EQ(CountRotated(c), 36);
  EXPECT_EQ(c.layers[2].window, 128);
  EXPECT_EQ(c.layers[3].window, 0);
  EXPECT_FALSE(c.layers[3].rope);
  EXPECT_EQ(c.moe->router.group_score, RouterConfig::GroupScore::kTop2Sum);
  const ModelConfig mtp = MtpConfigOf(c);
  EXPECT_FALSE(mtp.has_moe() || mtp.layers[0].moe);
  EXPECT_EQ(mtp.layers[0].window, 128);
  EXPECT_EQ(LayerPrefix(NamesOf(mtp), mtp.first_layer), "mtp.layers.0.");
  std::string full = kExaone;
  full.insert(1, R"("mtp_layer_types": ["full_attention"], "mtp_sliding_windows": [0],)");
  EXPECT_TRUE(ParseModelConfig(full).unknown_keys.empty());
  const ModelConfig of_full = MtpConfigOf(ParseModelConfig(full));
  EXPECT_EQ(of_full.layers[0].window, 0);
  EXPECT_FALSE(of_full.layers[0].rope);
}

TEST(HubConfig, ExaoneRefusesAnUnknownPattern) {
  std::string text = kExaone;
  text.replace(text.find("LLLG"), 4, "LLXG");
  EXPECT_THAT(ErrorOf(text), HasSubstr("sliding_window_pattern is \"LLXG\""));
}

TEST(HubConfig, FlexOlmo7x7B) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["FlexOlmoForCausalLM"], "attention_bias": false, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "flex_olmo", "norm_topk_prob": false,
    "num_attention_heads": 32, "num_experts": 7, "num_experts_per_tok": 5,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 100352})");
  EXPECT_EQ(c.attention.qk_norm, QkNorm::kWhole);
  EXPECT_TRUE(NamesOf(c).input_norm.empty());
  EXPECT_FALSE(c.moe->router.renormalize);
}

TEST(HubConfig, Phi35Moe) {
  std::string factors = "[";
  for (int i = 0; i < 64; ++i) factors += i == 0 ? "1.0" : ", 2.0";
  factors += "]";
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["PhiMoEForCausalLM"], "attention_bias": true, "bos_token_id": 1,
    "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 4096,
    "input_jitter_noise": 0.01, "intermediate_size": 6400, "lm_head_bias": true,
    "max_position_embeddings": 131072, "model_type": "phimoe", "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 16, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": )" + factors +
                                         R"(, "long_mscale": 1.243163121016122,
    "original_max_position_embeddings": 4096, "short_factor": )" +
                                         factors + R"(, "short_mscale": 1.1, "type": "longrope"},
    "rope_theta": 10000.0, "router_jitter_noise": 0.01, "sliding_window": 131072,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32064})");
  EXPECT_TRUE(c.layer_norm);
  EXPECT_TRUE(c.head_bias);
  EXPECT_TRUE(c.attention.output_bias);
  EXPECT_EQ(c.moe->router.scoring, Scoring::kSparseMixer);
  EXPECT_FLOAT_EQ(c.moe->router.jitter, 0.01f);
  const Tensor table = BuildCosSin(c.rope, 4098);
  EXPECT_FLOAT_EQ(table.data<float>()[0], 1.1f);  // cos(0)
  const float* late = table.data<float>() + 4097 * 128;
  EXPECT_NEAR(std::hypot(late[5], late[64 + 5]), 1.2431631f, 1e-6f);
}

TEST(HubConfig, MistralSmall4) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
    "tie_word_embeddings": false, "vision_config": {}, "text_config": {
    "attention_bias": false, "bos_token_id": 1, "dtype": "bfloat16", "eos_token_id": 2,
    "first_k_dense_replace": 0, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 12288, "kv_lora_rank": 256, "max_position_embeddings": 1048576,
    "model_type": "mistral4", "moe_intermediate_size": 2048, "n_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts_per_tok": 4, "num_hidden_layers": 36,
    "num_key_value_heads": 32, "q_lora_rank": 1024, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_interleave": true,
    "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 128.0,
    "llama_4_scaling_beta": 0.1, "max_position_embeddings": 1048576, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 8192,
    "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "yarn", "type": "yarn"},
    "routed_scaling_factor": 1.0, "topk_group": 1, "v_head_dim": 128, "vocab_size": 131072}})");
  EXPECT_EQ(c.architecture, "Mistral4ForCausalLM");
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.moe->router.scoring, Scoring::kSoftmax);
  const Tensor scale = BuildQueryScale(c.attention, 8193);
  EXPECT_EQ(scale.data<float>()[0], 1.0f);
  EXPECT_FLOAT_EQ(scale.data<float>()[8192 * QueryScaleWidth(c.attention)],
                  1.0f + 0.1f * std::log(2.0f));
  const double m = 0.1 * std::log(128.0) + 1.0;
  EXPECT_NEAR(c.attention.scale, m * m / std::sqrt(128.0), 1e-7);
}

constexpr const char* kScout = R"({
    "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080,
    "eoi_token_index": 200081, "image_token_index": 200092, "model_type": "llama4",
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vision_config": {}, "text_config": {
    "_attn_implementation_autoset": true, "attention_bias": false, "attention_chunk_size": 8192,
    "attention_dropout": 0.0, "attn_scale": 0.1, "attn_temperature_tuning": 4,
    "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192,
    "for_llm_compressor": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "initializer_range": 0.02, "interleave_moe_layer_step": 1, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
    "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
    "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 16, "output_router_logits": false, "pad_token_id": 200018,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
    "torch_dtype": "bfloat16", "use_cache": true, "use_qk_norm": true, "vocab_size": 202048}})";

TEST(HubConfig, Llama4Scout) {
  const ModelConfig c = ParseModelConfig(kScout);
  EXPECT_EQ(c.architecture, "Llama4ForCausalLM");
  EXPECT_EQ(NamesOf(c).layers, "language_model.model.layers.");
  EXPECT_EQ(CountMoe(c), 48);
  EXPECT_EQ(CountRotated(c), 36);
  EXPECT_EQ(c.layers[2].chunk, 8192);
  EXPECT_TRUE(c.layers[2].qk_norm);
  EXPECT_EQ(c.layers[3].chunk, 0);
  EXPECT_FALSE(c.layers[3].qk_norm);
  EXPECT_EQ(c.moe->shared_intermediate, 8192);
  EXPECT_EQ(c.intermediate, 16384);
  EXPECT_TRUE(c.moe->router.scales_input);
  EXPECT_TRUE(c.unknown_keys.empty());
  const Tensor scale = BuildQueryScale(c.attention, 8193);
  const int64_t width = QueryScaleWidth(c.attention);
  EXPECT_EQ(scale.data<float>()[8190 * width], 1.0f);
  EXPECT_FLOAT_EQ(scale.data<float>()[8191 * width], 1.0f + 0.1f * std::log(2.0f));
  // Equal frequency factors leave no ramp: each frequency is unscaled or divided by 16.
  const std::vector<float> scaled = InverseFrequencies(c.rope);
  RopeConfig plain = c.rope;
  plain.type = RopeConfig::Type::kDefault;
  const std::vector<float> unscaled = InverseFrequencies(plain);
  EXPECT_EQ(scaled.front(), unscaled.front());
  EXPECT_EQ(scaled.back(), unscaled.back() / 16.0f);
}

TEST(HubConfig, Llama4RefusesWhatItDoesNotCompute) {
  const auto with = [](const std::string& key, const std::string& value) {
    std::string text = kScout;
    const size_t at = text.find("\"" + key + "\": ") + key.size() + 4;
    return text.replace(at, text.find_first_of(",}", at) - at, value);
  };
  EXPECT_THAT(ErrorOf(with("num_experts_per_tok", "2")),
              HasSubstr("text_config.num_experts_per_tok is 2; only 1 is supported"));
  EXPECT_THAT(ErrorOf(with("no_rope_layers", "[1]")), HasSubstr("no_rope_layers has 1 entries"));
  EXPECT_THAT(ErrorOf(with("attention_chunk_size", "0")), HasSubstr("attention_chunk_size is 0"));
  EXPECT_THAT(ErrorOf(with("attn_temperature_tuning", "\"on\"")),
              HasSubstr("attn_temperature_tuning is \"on\""));
  EXPECT_EQ(ParseModelConfig(with("attention_chunk_size", "null")).layers[0].chunk, 0);
  EXPECT_EQ(ParseModelConfig(with("attn_temperature_tuning", "false")).attention.query_scale_beta,
            0.0);
}

constexpr const char* kLongcat = R"({
    "architectures": ["LongcatFlashForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "attention_method": "MLA", "bos_token_id": 1, "eos_token_id": 2,
    "expert_ffn_hidden_size": 2048, "ffn_hidden_size": 12288, "hidden_size": 6144,
    "initializer_range": 0.006, "kv_lora_rank": 512, "max_position_embeddings": 131072,
    "mla_scale_kv_lora": true, "mla_scale_q_lora": true, "model_type": "longcat_flash",
    "moe_topk": 12, "n_routed_experts": 512, "num_attention_heads": 64, "num_layers": 28,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_theta": 10000000.0, "router_bias": false, "routed_scaling_factor": 6.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
    "v_head_dim": 128, "vocab_size": 131072, "zero_expert_num": 256,
    "zero_expert_type": "identity"})";

TEST(HubConfig, LongcatFlash) {
  const ModelConfig c = ParseModelConfig(kLongcat);
  EXPECT_EQ(c.num_layers(), 56);
  EXPECT_EQ(CountMoe(c), 28);
  EXPECT_TRUE(c.layers[0].shortcut && c.layers[0].dense());
  EXPECT_FALSE(c.layers[1].moe || c.layers[1].shortcut);
  EXPECT_EQ(c.moe->router.num_logits(), 768);
  EXPECT_EQ(c.moe->router.scoring, Scoring::kSoftmax);
  EXPECT_FALSE(c.moe->router.renormalize);
  EXPECT_FLOAT_EQ(c.attention.scale, 2.0f / std::sqrt(192.0f));
  EXPECT_FLOAT_EQ(c.attention.latent_scale, std::sqrt(12.0f));
  const TensorNames names = NamesOf(c);
  EXPECT_EQ(LayerPrefix(names, 55), "model.layers.27.");
  EXPECT_EQ(NamesOfLayer(names, 55).q_b, "self_attn.1.q_b_proj");
  EXPECT_EQ(NamesOfLayer(names, 54).mlp, "mlps.0");
  const ModelConfig mtp = MtpConfigOf(c);
  const TensorNames of_mtp = NamesOf(mtp);
  EXPECT_EQ(LayerPrefix(of_mtp, mtp.first_layer), "model.mtp.layers.0.");
  EXPECT_EQ(NamesOfLayer(of_mtp, mtp.first_layer).q_b, "self_attn.q_b_proj");
}

TEST(HubConfig, LongcatFlashRefusesWhatItDoesNotCompute) {
  const auto error_with = [](std::string_view settings) {
    return ErrorOf(std::string(kLongcat).replace(0, 1, fmt::format("{{{},", settings)));
  };
  EXPECT_THAT(error_with(R"("norm_topk_prob": true)"), HasSubstr("norm_topk_prob is true"));
  EXPECT_THAT(error_with(R"("num_hidden_layers": 28)"), HasSubstr("num_hidden_layers is not 56"));
  EXPECT_THAT(error_with(R"("qk_head_dim": 128)"), HasSubstr("qk_head_dim is not 192"));
  EXPECT_THAT(error_with(R"("n_shared_experts": 1)"), HasSubstr("n_shared_experts is 1"));
  const auto without = [](std::string_view setting, std::string_view other) {
    std::string text = kLongcat;
    return ErrorOf(text.replace(text.find(setting), setting.size(), other));
  };
  EXPECT_THAT(without(R"("router_bias": false)", R"("router_bias": true)"),
              HasSubstr("router_bias is true"));
  EXPECT_THAT(without("identity", "zero"), HasSubstr("zero_expert_type is \"zero\""));
  EXPECT_THAT(without(R"("mla_scale_q_lora": true)", R"("mla_scale_q_lora": false)"),
              HasSubstr("mla_scale_q_lora is false"));
  EXPECT_THAT(without("1536", "null"), HasSubstr("q_lora_rank: want a rank"));
  EXPECT_THAT(without(R"("moe_topk": 12)", R"("moe_topk": 513)"),
              HasSubstr("moe_topk is 513, more than the 512 experts"));
}

TEST(HubConfig, TrinityMini) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["AfmoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 3, "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "load_balance_coeff": 0.001,
    "max_position_embeddings": 131072, "model_type": "afmoe", "moe_intermediate_size": 1024,
    "mup_enabled": true, "n_group": 1, "num_attention_heads": 32, "num_dense_layers": 2,
    "num_expert_groups": 1, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "num_limited_groups": 1,
    "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000,
    "route_norm": true, "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 2048,
    "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16",
    "use_grouped_mm": true, "vocab_size": 200192})");
  EXPECT_TRUE(c.attention.gate);
  EXPECT_FLOAT_EQ(c.embedding_scale, std::sqrt(2048.0f));
  EXPECT_EQ(CountMoe(c), 30);
  EXPECT_EQ(CountRotated(c), 24);
  EXPECT_FALSE(c.layers[3].rope);
  EXPECT_FLOAT_EQ(c.moe->router.routed_scaling_factor, 2.826f);
}

TEST(HubConfig, LingMini2) {
  const ModelConfig c = ParseModelConfig(R"({
    "architectures": ["BailingMoeV2ForCausalLM"], "eos_token_id": 156892,
    "embedding_dropout": 0.0, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 5120, "max_position_embeddings": 32768,
    "max_window_layers": 20, "model_type": "bailing_moe", "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": true, "n_group": 8, "norm_topk_prob": true,
    "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
    "num_hidden_layers": 20, "num_key_value_heads": 4, "num_nextn_predict_layers": 0,
    "num_shared_experts": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 600000, "routed_scaling_factor": 2.5,
    "rotary_dim": 64, "router_dtype": "fp32", "score_function": "sigmoid",
    "tie_word_embeddings": false, "topk_group": 4, "torch_dtype": "bfloat16", "use_bias": false,
    "use_qk_norm": true, "use_qkv_bias": false, "use_rmsnorm": true, "vocab_size": 157184})");
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(c.moe->router.num_groups, 8);
  EXPECT_EQ(c.moe->router.topk_groups, 4);
  EXPECT_EQ(CountMoe(c), 19);
  ModelConfig with_mtp = c;
  with_mtp.mtp_layers = 1;
  const ModelConfig mtp = MtpConfigOf(with_mtp);
  EXPECT_TRUE(mtp.layers[0].moe);
  EXPECT_EQ(LayerPrefix(NamesOf(mtp), mtp.first_layer), "model.layers.20.");
  EXPECT_EQ(NamesOf(mtp).mtp_layer_norm, "final_layernorm");
}

}  // namespace
}  // namespace switchyard
