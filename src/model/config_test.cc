#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/testing.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Scoring = RouterConfig::Scoring;
using QkNorm = AttentionConfig::QkNorm;

ModelConfig Fixture(const std::string& name) {
  return LoadModelConfig(std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name);
}
json FixtureJson(const std::string& name) {
  std::ifstream file(std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name /
                     "config.json");
  return json::parse(file);
}
ModelConfig Parse(const json& config, const std::string& generation = "") {
  return ParseModelConfig(config.dump(), generation);
}
std::string MessageOf(const json& config, const std::string& generation = "") {
  try {
    Parse(config, generation);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
    return e.what();
  }
  return "no error";
}
std::vector<bool> MoeLayers(const ModelConfig& config) {
  std::vector<bool> moe;
  for (const LayerConfig& layer : config.layers) moe.push_back(layer.moe);
  return moe;
}
std::vector<int> Windows(const ModelConfig& config) {
  std::vector<int> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return windows;
}

TEST(ConfigFixtures, Mixtral) {
  const ModelConfig c = Fixture("mixtral");
  EXPECT_EQ(c.architecture, "MixtralForCausalLM");
  EXPECT_EQ(c.dtype, DType::kF32);
  EXPECT_EQ(c.vocab_size, 512);
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.max_position, 512);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.attention.head_dim, 16);
  EXPECT_EQ(c.attention.kv_heads, 2);
  EXPECT_FLOAT_EQ(c.attention.scale, 0.25f);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::kDefault);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  ASSERT_TRUE(c.has_moe());
  EXPECT_EQ(c.moe->intermediate, 96);
  EXPECT_EQ(c.moe->router.num_experts, 8);
  EXPECT_EQ(c.moe->router.top_k, 2);
  EXPECT_TRUE(c.moe->router.renormalize);
  EXPECT_THAT(MoeLayers(c), ElementsAre(true, true));
  EXPECT_THAT(Windows(c), ElementsAre(0, 0));
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(c.bos_token_id, 1);
}

TEST(ConfigFixtures, Qwen2Moe) {
  const ModelConfig c = Fixture("qwen2_moe");
  EXPECT_TRUE(c.attention.qkv_bias);
  EXPECT_FALSE(c.attention.output_bias);
  EXPECT_FALSE(c.moe->router.renormalize);
  EXPECT_EQ(c.moe->shared_intermediate, 96);
  EXPECT_TRUE(c.moe->shared_gate);
  EXPECT_EQ(c.intermediate, 128);
  EXPECT_THAT(MoeLayers(c), ElementsAre(true, false, true));
  EXPECT_THAT(Windows(c), ElementsAre(0, 0, 0));
  EXPECT_FALSE(c.bos_token_id.has_value());
}

TEST(ConfigFixtures, Qwen3MoeAndOlmoe) {
  const ModelConfig q = Fixture("qwen3_moe");
  EXPECT_EQ(q.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(q.attention.head_dim, 32);
  EXPECT_TRUE(q.moe->router.renormalize);
  EXPECT_EQ(q.moe->shared_intermediate, 0);
  EXPECT_EQ(q.dtype, DType::kBF16);
  const ModelConfig o = Fixture("olmoe");
  EXPECT_EQ(o.attention.qk_norm, QkNorm::kWhole);
  EXPECT_EQ(o.moe->intermediate, 32);
  EXPECT_FALSE(o.moe->router.renormalize);
}

TEST(ConfigFixtures, DeepseekV2) {
  const ModelConfig c = Fixture("deepseek_v2");
  EXPECT_EQ(c.attention.kind, AttentionConfig::Kind::kLatent);
  EXPECT_EQ(c.attention.q_lora_rank, 0);
  EXPECT_EQ(c.attention.kv_lora_rank, 32);
  EXPECT_EQ(c.attention.head_dim, 32);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_EQ(c.rope.type, RopeConfig::Type::kYarn);
  const double m = 0.1 * 0.707 * std::log(4.0) + 1.0;
  EXPECT_NEAR(c.attention.scale, m * m / std::sqrt(32.0), 1e-7);
  const RouterConfig& r = c.moe->router;
  EXPECT_EQ(r.scoring, Scoring::kSoftmax);
  EXPECT_EQ(r.num_groups, 4);
  EXPECT_EQ(r.topk_groups, 2);
  EXPECT_EQ(r.group_score, RouterConfig::GroupScore::kMax);
  EXPECT_FALSE(r.renormalize);
  EXPECT_FLOAT_EQ(r.routed_scaling_factor, 1.5f);
  EXPECT_EQ(c.moe->shared_intermediate, 64);
  EXPECT_FALSE(c.moe->shared_gate);
  EXPECT_THAT(MoeLayers(c), ElementsAre(false, true, true));
}

TEST(ConfigFixtures, DeepseekV3) {
  const ModelConfig c = Fixture("deepseek_v3");
  EXPECT_EQ(c.attention.q_lora_rank, 48);
  const double m = 0.1 * std::log(4.0) + 1.0;
  EXPECT_NEAR(c.attention.scale, m * m / std::sqrt(32.0), 1e-7);
  const RouterConfig& r = c.moe->router;
  EXPECT_EQ(r.scoring, Scoring::kSigmoid);
  EXPECT_EQ(r.group_score, RouterConfig::GroupScore::kTop2Sum);
  EXPECT_TRUE(r.renormalize);
  EXPECT_FLOAT_EQ(r.routed_scaling_factor, 2.5f);
  EXPECT_EQ(c.num_layers(), 3);  // excludes the MTP layer
  EXPECT_EQ(c.quantization.method, "");

  const ModelConfig fp8 = Fixture("deepseek_v3_fp8");
  EXPECT_EQ(fp8.quantization.method, "fp8");
  EXPECT_EQ(fp8.quantization.rules.at(0).scheme.format, WeightFormat::kFp8Block);
  EXPECT_EQ(fp8.rope.type, RopeConfig::Type::kDefault);
  EXPECT_FLOAT_EQ(fp8.attention.scale, 0.125f);
}

TEST(ConfigFixtures, GptOss) {
  const ModelConfig c = Fixture("gpt_oss");
  EXPECT_TRUE(std::ranges::all_of(c.layers, &LayerConfig::sinks));
  EXPECT_TRUE(c.attention.qkv_bias);
  EXPECT_TRUE(c.attention.output_bias);
  EXPECT_THAT(Windows(c), ElementsAre(16, 0, 16, 0));
  EXPECT_EQ(c.rope.type, RopeConfig::Type::kYarn);
  EXPECT_FALSE(c.rope.truncate);
  EXPECT_FALSE(c.rope.interleaved);
  EXPECT_EQ(c.rope.original_max_position, 128);
  EXPECT_EQ(c.moe->router.scoring, Scoring::kTopKSoftmax);
  EXPECT_EQ(c.activation, kernels::Activation::kSwiGluClamped);
  EXPECT_TRUE(c.quantization.mxfp4_blocks());
}

TEST(ConfigFixtures, Glm4MoeAndDense) {
  const ModelConfig g = Fixture("glm4_moe");
  EXPECT_EQ(g.rope.rotary_dim, 16);
  EXPECT_FALSE(g.rope.interleaved);
  EXPECT_EQ(g.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(g.attention.qkv_bias);
  EXPECT_FALSE(g.attention.output_bias);
  EXPECT_EQ(g.moe->router.scoring, Scoring::kSigmoid);
  EXPECT_FLOAT_EQ(g.moe->router.routed_scaling_factor, 1.5f);
  EXPECT_THAT(MoeLayers(g), ElementsAre(false, true, true));

  const ModelConfig l = Fixture("llama");
  EXPECT_FALSE(l.has_moe());
  EXPECT_TRUE(l.tie_embeddings);
  EXPECT_EQ(l.rope.type, RopeConfig::Type::kLlama3);
  EXPECT_EQ(l.rope.original_max_position, 64);
  const ModelConfig q = Fixture("qwen3");
  EXPECT_EQ(q.attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(q.attention.head_dim, 32);
}

// Absent keys have the defaults of the family's configuration class.
TEST(Config, GlmRotatesHalfOfAHeadByDefault) {
  json glm = FixtureJson("glm4_moe");
  glm.erase("partial_rotary_factor");
  const ModelConfig config = ParseModelConfig(glm.dump());
  EXPECT_EQ(config.rope.rotary_dim, config.attention.head_dim / 2);
}

// Rewrites the hub's spelling as transformers 5 would save it.
json Transformers5Spelling(json c) {
  json rope = c["rope_scaling"].is_null() ? json::object() : c["rope_scaling"];
  rope.erase("type");
  if (!rope.contains("rope_type")) rope["rope_type"] = "default";
  rope["rope_theta"] = c["rope_theta"];
  if (c.contains("partial_rotary_factor")) {
    rope["partial_rotary_factor"] = c["partial_rotary_factor"];
    c.erase("partial_rotary_factor");
  }
  c["rope_parameters"] = rope;
  c["dtype"] = c["torch_dtype"];
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype"}) c.erase(key);
  for (const char* key : {"num_experts", "n_routed_experts"}) {
    if (c.contains(key)) {
      c["num_local_experts"] = c[key];
      // In deepseek_v2 the presence of this key marks MoE models.
      if (c["model_type"] != "deepseek_v2") c.erase(key);
    }
  }
  return c;
}

void ExpectEqual(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.num_layers(), b.num_layers());
  EXPECT_EQ(MoeLayers(a), MoeLayers(b));
  EXPECT_EQ(Windows(a), Windows(b));
  EXPECT_EQ(a.attention.head_dim, b.attention.head_dim);
  EXPECT_EQ(a.attention.scale, b.attention.scale);
  EXPECT_EQ(a.rope.type, b.rope.type);
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_EQ(a.rope.factor, b.rope.factor);
  EXPECT_EQ(a.rope.original_max_position, b.rope.original_max_position);
  EXPECT_EQ(a.rope.low_freq_factor, b.rope.low_freq_factor);
  EXPECT_EQ(a.rope.high_freq_factor, b.rope.high_freq_factor);
  EXPECT_EQ(a.rope.beta_fast, b.rope.beta_fast);
  EXPECT_EQ(a.rope.mscale_all_dim, b.rope.mscale_all_dim);
  EXPECT_EQ(a.rope.truncate, b.rope.truncate);
  EXPECT_EQ(a.rope.rotary_dim, b.rope.rotary_dim);
  EXPECT_EQ(a.rope.interleaved, b.rope.interleaved);
  EXPECT_EQ(a.quantization, b.quantization);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
  ASSERT_EQ(a.has_moe(), b.has_moe());
  if (a.has_moe()) {
    EXPECT_EQ(a.moe->router.num_experts, b.moe->router.num_experts);
    EXPECT_EQ(a.moe->router.top_k, b.moe->router.top_k);
    EXPECT_EQ(a.moe->intermediate, b.moe->intermediate);
  }
}

TEST(Config, BothSpellingsMeanTheSame) {
  for (const char* name : {"qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3",
                           "deepseek_v3_fp8", "gpt_oss", "glm4_moe", "llama", "qwen3"}) {
    SCOPED_TRACE(name);
    const json hub = FixtureJson(name);
    ExpectEqual(Parse(hub), Parse(Transformers5Spelling(hub)));
  }
}

TEST(Config, WindowsWithoutLayerTypes) {
  json qwen = FixtureJson("qwen3");
  qwen.erase("layer_types");
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 7;
  qwen["max_window_layers"] = 1;
  EXPECT_THAT(Windows(Parse(qwen)), ElementsAre(0, 7));
  json oss = FixtureJson("gpt_oss");
  oss.erase("layer_types");
  EXPECT_THAT(Windows(Parse(oss)), ElementsAre(16, 0, 16, 0));
  json mixtral = FixtureJson("mixtral");
  mixtral["sliding_window"] = 9;
  EXPECT_THAT(Windows(Parse(mixtral)), ElementsAre(9, 9));
}

TEST(Config, SparseStepSelectsEveryOtherLayer) {
  json c = FixtureJson("qwen3_moe");
  c["decoder_sparse_step"] = 2;
  EXPECT_THAT(MoeLayers(Parse(c)), ElementsAre(false, true, false));
}

TEST(Config, EndOfSequenceIdsOfBothFiles) {
  json c = FixtureJson("llama");
  c["eos_token_id"] = {511, 509};
  EXPECT_THAT(Parse(c, R"({"eos_token_id": [509, 3], "bos_token_id": 4})").eos_token_ids,
              ElementsAre(511, 509, 3));
}

struct BadCase {
  const char* fixture;
  const char* patch;  // merged into the fixture's config.json
  std::vector<std::string> says;
};

TEST(Config, BadValuesAreNamed) {
  const std::vector<BadCase> cases = {
      {"llama", R"({"vocab_size": 0})", {"vocab_size", "0"}},
      {"llama", R"({"vocab_size": 1e12})", {"vocab_size"}},
      {"llama", R"({"hidden_size": -64})", {"hidden_size", "-64"}},
      {"llama", R"({"hidden_size": "64"})", {"hidden_size", "\"64\""}},
      {"llama", R"({"hidden_size": 64.5})", {"hidden_size", "64.5"}},
      {"llama", R"({"hidden_size": 2000000000})", {"hidden_size", "2000000000"}},
      {"llama", R"({"hidden_size": 18446744073709551615})", {"hidden_size"}},
      {"llama", R"({"hidden_size": null})", {"hidden_size is missing"}},
      {"llama", R"({"num_hidden_layers": 0})", {"num_hidden_layers"}},
      {"llama", R"({"num_hidden_layers": 100000000})", {"num_hidden_layers"}},
      {"llama", R"({"num_key_value_heads": 3})", {"num_attention_heads is 4", "3"}},
      {"llama",
       R"({"head_dim": null, "num_attention_heads": 6, "num_key_value_heads": 2})",
       {"hidden_size is 64", "6"}},
      {"llama", R"({"head_dim": 15})", {"15"}},
      {"llama", R"({"hidden_act": "gelu"})", {"hidden_act", "gelu"}},
      {"llama", R"({"mlp_bias": true})", {"mlp_bias"}},
      {"llama", R"({"mlp_bias": 1})", {"mlp_bias", "true or false"}},
      {"llama", R"({"torch_dtype": "int8"})", {"torch_dtype", "int8"}},
      {"llama", R"({"rope_scaling": {"rope_type": "mrope"}})", {"rope_type", "mrope", "longrope"}},
      {"llama", R"({"rope_scaling": {"rope_type": "longrope"}})", {"short_factor is missing"}},
      {"llama",
       R"({"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}})",
       {"short_factor has 1"}},
      {"llama",
       R"({"rope_scaling": {"rope_type": "dynamic", "factor": 0.5}})",
       {"rope_scaling.factor is 0.5"}},
      {"llama", R"({"rope_scaling": {"factor": -1}})", {"rope_scaling.factor", "-1"}},
      {"llama", R"({"rope_scaling": 3})", {"rope_scaling is 3"}},
      {"llama", R"({"rope_theta": 0})", {"rope_theta"}},
      {"llama", R"({"eos_token_id": 512})", {"eos_token_id", "512"}},
      {"llama", R"({"eos_token_id": "x"})", {"eos_token_id"}},
      {"llama", R"({"rms_norm_eps": "small"})", {"rms_norm_eps"}},
      {"llama",
       R"({"quantization_config": {"quant_method": "aqlm"}})",
       {"quantization_config.quant_method", "aqlm", "fp8", "mxfp4"}},
      {"llama", R"({"quantization_config": {"quant_method": "mxfp4"}})", {"gpt-oss"}},
      {"llama", R"({"quantization_config": {"quant_method": "gptq", "bits": 3}})", {"bits", "3"}},
      {"llama",
       R"({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}})",
       {"version", "gemv"}},
      {"llama",
       R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MXFP8"}})",
       {"quant_algo", "MXFP8"}},
      {"llama",
       R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups":
                   {"group_0": {"weights": {"num_bits": 2, "type": "int"}}}}})",
       {"config_groups.group_0.weights.num_bits", "int of 2 bits"}},
      {"llama",
       R"({"quantization_config": {"quant_method": "awq", "bits": 4,
                   "modules_to_not_convert": "lm_head"}})",
       {"modules_to_not_convert"}},
      {"deepseek_v3_fp8",
       R"({"quantization_config": {"weight_block_size": [64, 128]}})",
       {"weight_block_size", "[64, 128]"}},
      {"llama",
       R"({"architectures": ["GemmaForCausalLM"]})",
       {"GemmaForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM"}},
      {"llama", R"({"architectures": null, "model_type": "gemma"})", {"gemma", "known"}},
      {"llama", R"({"architectures": "LlamaForCausalLM"})", {"architectures", "list"}},
      {"mixtral", R"({"num_experts_per_tok": 9})", {"num_experts_per_tok is 9", "8"}},
      {"mixtral", R"({"num_local_experts": 0})", {"num_local_experts"}},
      {"olmoe", R"({"clip_qkv": -8.0})", {"clip_qkv"}},
      {"deepseek_v2", R"({"n_group": 5})", {"n_group is 5", "16"}},
      {"deepseek_v2", R"({"topk_group": 5})", {"topk_group is 5", "n_group 4"}},
      {"deepseek_v2", R"({"topk_method": "noaux_tc"})", {"topk_method"}},
      {"deepseek_v3", R"({"topk_group": 1, "num_experts_per_tok": 5})", {"num_experts_per_tok"}},
      {"deepseek_v3", R"({"n_group": 16, "num_experts_per_tok": 2})", {"n_group", "two best"}},
      {"deepseek_v3", R"({"scoring_func": "softmax"})", {"scoring_func"}},
      {"deepseek_v3", R"({"qk_rope_head_dim": 15})", {"15"}},
      {"deepseek_v3", R"({"kv_lora_rank": 0})", {"kv_lora_rank"}},
      {"gpt_oss", R"({"layer_types": ["full_attention"]})", {"layer_types", "1 entries"}},
      {"gpt_oss", R"({"layer_types": ["a", "b", "c", "d"]})", {"layer_types", "\"a\""}},
      {"qwen2_moe", R"({"mlp_only_layers": [3]})", {"mlp_only_layers", "3"}},
      {"glm4_moe", R"({"partial_rotary_factor": 0.01})", {"partial_rotary_factor"}},
  };
  for (const BadCase& c : cases) {
    SCOPED_TRACE(c.patch);
    json config = FixtureJson(c.fixture);
    config.merge_patch(json::parse(c.patch));
    const std::string message = MessageOf(config);
    EXPECT_THAT(message, HasSubstr("config.json"));
    for (const std::string& part : c.says) EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_THAT(MessageOf(FixtureJson("llama"), R"({"eos_token_id": -1})"),
              HasSubstr("generation_config.json: eos_token_id"));
}

TEST(Config, FilesThatAreNotConfigs) {
  EXPECT_THROW(ParseModelConfig("{"), Error);
  EXPECT_THROW(ParseModelConfig("[]"), Error);
  EXPECT_THROW(ParseModelConfig("{}"), Error);
  EXPECT_THROW(ParseModelConfig(std::string(100000, '[')), Error);
  try {
    LoadModelConfig("/nonexistent/model");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kNotFound);
    EXPECT_THAT(e.what(), HasSubstr("/nonexistent/model/config.json"));
  }
}

// Without O_NONBLOCK, opening a FIFO without a writer blocks.
TEST(Config, FilesThatAreNotRegularAreNamed) {
  const testing::TempDir dir;
  const auto load = [&] { LoadModelConfig(dir.path()); };
  ASSERT_EQ(mkfifo((dir.path() / "config.json").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(load), HasSubstr("config.json: is a FIFO"));
  std::filesystem::remove(dir.path() / "config.json");
  testing::CopyConfig(SWITCHYARD_TEST_DATA "/fixtures/llama", dir.path());
  ASSERT_EQ(mkfifo((dir.path() / "generation_config.json").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(load), HasSubstr("generation_config.json: is a FIFO"));
}

}  // namespace
}  // namespace switchyard
