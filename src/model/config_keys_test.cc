// Every key of the configurations of transformers is read, has no effect, or is refused by name.
#include "model/config_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "model/config.h"
#include "model/families/family.h"

namespace switchyard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// tests/data/families/config_keys.json, by make_families.py: for each model_type the configuration
// that transformers writes with default settings.
const json& Defaults() {
  static const json defaults = [] {
    std::ifstream file(std::string(SWITCHYARD_TEST_DATA) + "/families/config_keys.json");
    return json::parse(file);
  }();
  return defaults;
}

std::string ErrorOf(const json& config) {
  try {
    ParseModelConfig(config.dump());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The keys that the family's reader reads, including keys that it reads only if another key is set
// or absent.
std::set<std::string> ReadKeys(const json& defaults) {
  std::set<std::string> keys;
  for (const char* change : {"", "use_sliding_window", "layer_types", "mlp_layer_types"}) {
    json config = defaults;
    if (change == std::string("use_sliding_window")) config[change] = true;
    if (config.contains("sliding_window")) config["sliding_window"] = 64;  // may be 0
    if (std::string(change).ends_with("layer_types")) config.erase(change);
    const ConfigReader reader(config.dump(), "config.json");
    ModelConfig model;
    try {
      for (const Family& family : Families())
        if (family.model_type == config["model_type"]) family.read_config(reader, &model);
    } catch (const Error&) {  // a value that a test has changed may be invalid; it was read
    }
    for (const auto& item : config.items())
      if (reader.WasRead(item.key())) keys.insert(item.key());
  }
  return keys;
}

// Keys that Parse reads for every family.
bool IsCommon(const std::string& key) {
  static const std::set<std::string> common = {"architectures",
                                               "model_type",
                                               "bos_token_id",
                                               "eos_token_id",
                                               "num_nextn_predict_layers",
                                               "is_causal",
                                               "quantization",
                                               "use_bidirectional_attention"};
  return common.contains(key);
}

TEST(ConfigKeysTest, EachFamilyHasTheKeysOfTransformers) {
  for (const Family& family : Families()) {
    const std::string type(family.model_type);
    // Not in transformers: kimi_k2 is read as deepseek_v3, and bailing_moe_v2 as sarvam_moe.
    if (type == "kimi_k2" || type == "bailing_moe_v2") continue;
    EXPECT_TRUE(Defaults().contains(type)) << type;
  }
}

TEST(ConfigKeysTest, DefaultConfigurationsAreAccepted) {
  for (const auto& item : Defaults().items()) EXPECT_EQ(ErrorOf(item.value()), "") << item.key();
}

// The keys of a family by kind, one line for each kind.
std::string TableOf(const std::string& type, const json& defaults) {
  const auto read = ReadKeys(defaults);
  std::map<std::string, std::string> lines = {{"read", ""}, {"refused", ""}, {"no effect", ""}};
  for (const auto& item : defaults.items()) {
    const std::string& key = item.key();
    const KeyMark mark = MarkOf(key);
    const bool is_read = read.contains(key) || IsCommon(key);
    const char* kind = is_read                      ? "read"
                       : mark == KeyMark::kRefused  ? "refused"
                       : mark == KeyMark::kNoEffect ? "no effect"
                                                    : "unknown";
    lines[kind] += " " + key;
  }
  std::string text = type + "\n";
  for (const auto& [kind, keys] : lines) text += fmt::format("  {}:{}\n", kind, keys);
  return text;
}

TEST(ConfigKeysTest, EachKeyOfTransformersIsMarkedAsInTheTable) {
  std::string table;
  for (const auto& item : Defaults().items()) table += TableOf(item.key(), item.value());
  EXPECT_THAT(table, ::testing::Not(HasSubstr("unknown")));
  const std::string stored = std::string(SWITCHYARD_TEST_DATA) + "/families/config_keys.txt";
  std::ifstream file(stored);
  const std::string expected((std::istreambuf_iterator<char>(file)), {});
  if (table == expected) return;
  const std::string actual = ::testing::TempDir() + "config_keys.txt";
  std::ofstream(actual) << table;
  ADD_FAILURE() << stored << " differs from " << actual
                << "; if each change is intended, copy the second file over the first";
}

// A value that changes the forward pass of some family.
json ChangedValue(const std::string& key) {
  const auto neutral = NeutralValues(key);
  if (neutral.empty() || neutral.front() == "0" || neutral.front() == "1") return 7;
  return neutral.front() == "false" ? json(true) : json::array({1});
}

TEST(ConfigKeysTest, KeysThatAFamilyDoesNotReadAreRefusedByName) {
  const std::vector<std::string> keys = {"index_topk",
                                         "embedding_multiplier",
                                         "residual_multiplier",
                                         "attn_output_gate",
                                         "use_mla",
                                         "clip_qkv",
                                         "zero_expert_num",
                                         "attention_chunk_size",
                                         "mup_enabled",
                                         "hc_mult",
                                         "lm_head_bias",
                                         "num_shared_expert",
                                         "no_rope_layers",
                                         "query_pre_attn_scalar",
                                         "swa_rope_theta",
                                         "moe_latent_size",
                                         "sliding_window",
                                         "shared_expert_intermediate_size",
                                         "use_gated_attention"};
  for (const auto& item : Defaults().items()) {
    for (const std::string& key : keys) {
      json config = item.value();
      config[key] = ChangedValue(key);
      if (ReadKeys(config).contains(key)) continue;
      EXPECT_THAT(ErrorOf(config), HasSubstr(key + " is")) << item.key();
      config[key] = nullptr;
      EXPECT_EQ(ErrorOf(config), "") << item.key() << ": " << key;
    }
  }
}

// A model whose queries attend to selected keys only is never run with attention to all keys.
TEST(ConfigKeysTest, SparseAttentionUnderAnotherNameIsRefused) {
  for (const auto& item : Defaults().items()) {
    for (const char* key : {"index_top_k", "index_kpool", "indexer_topk", "dsa_topk", "nsa_topk",
                            "sparse_attention_topk", "use_sparse_attention", "lightning_topk"}) {
      json config = item.value();
      config[key] = 2048;
      EXPECT_THAT(ErrorOf(config), HasSubstr(std::string(key) + " is 2048")) << item.key();
      config[key] = false;
      EXPECT_EQ(ErrorOf(config), "") << item.key() << ": " << key;
    }
  }
  for (const char* type : {"deepseek_v32", "glm_moe_dsa"}) {
    json config = Defaults().at(type);
    config["index_top_keys"] = config["index_topk"];
    config.erase("index_topk");
    EXPECT_THAT(ErrorOf(config), HasSubstr("index_topk"));
  }
}

TEST(ConfigKeysTest, ALimitOfWeightsThatChangesThemIsRefused) {
  json config = Defaults().at("ernie4_5_moe");
  config["moe_norm_min"] = 0.5;
  EXPECT_THAT(ErrorOf(config), HasSubstr("moe_norm_min is 0.5"));
}

// Keys of newer K-EXAONE models, which transformers 5.24 does not know.
TEST(ConfigKeysTest, WindowsAndLimitsByLayerAreRefused) {
  for (const char* key : {"sliding_windows", "swiglu_limits"}) {
    json config = Defaults().at("exaone_moe");
    config[key] = json::array({1, 2});
    EXPECT_THAT(ErrorOf(config), HasSubstr(std::string(key) + " is")) << key;
  }
}

TEST(ConfigKeysTest, RotarySettingsThatAFamilyDoesNotReadAreRefused) {
  json config = Defaults().at("qwen3_moe");
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  EXPECT_THAT(ErrorOf(config), HasSubstr("rope_parameters.llama_4_scaling_beta is 0.1"));
}

TEST(ConfigKeysTest, UnknownKeysAreReported) {
  json config = Defaults().at("qwen3_moe");
  config["a_new_key"] = 5;
  EXPECT_THAT(ParseModelConfig(config.dump()).unknown_keys, ::testing::ElementsAre("a_new_key"));
}

}  // namespace
}  // namespace switchyard
