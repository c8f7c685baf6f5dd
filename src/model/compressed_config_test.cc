// Settings of models with compressed attention (DeepSeek-V4): rotary objects, token ids and
// quantized linears.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/testing.h"
#include "model/attention_flops.h"
#include "model/config.h"
#include "model/rank_memory.h"
#include "model/weights/source.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Settings() {
  return json::parse(testing::ReadBytes(std::filesystem::path(SWITCHYARD_TEST_DATA) /
                                        "families/deepseek_v4/config.json"));
}

std::string MessageOf(const json& config) {
  try {
    ParseModelConfig(config.dump());
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
    return e.what();
  }
  return "no error";
}

TEST(CompressedConfig, KeysOfTheTwoRotaryObjectsAreChecked) {
  for (const char* label : {"main", "compress"}) {
    json config = Settings();
    config["rope_parameters"][label]["llama_4_scaling_beta"] = 0.1;
    EXPECT_THAT(MessageOf(config), HasSubstr(std::string("rope_parameters.") + label +
                                             ".llama_4_scaling_beta is 0.1"));
  }
}

// transformers takes a key that an object lacks from no other place.
TEST(CompressedConfig, EachRotaryObjectIsComplete) {
  for (const char* label : {"main", "compress"}) {
    const std::string name = std::string("rope_parameters.") + label;
    for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
      json config = Settings();
      config["rope_parameters"][label].erase(key);
      EXPECT_THAT(MessageOf(config), HasSubstr(name + "." + key + " is missing"));
    }
    json config = Settings();
    config["rope_parameters"].erase(label);
    EXPECT_THAT(MessageOf(config), HasSubstr(name + " is missing; want both objects"));
    config["rope_scaling"] = std::exchange(config["rope_parameters"], nullptr);  // its older name
    EXPECT_THAT(MessageOf(config), HasSubstr(std::string("rope_scaling.") + label + " is missing"));
  }
}

TEST(CompressedConfig, ThetasInAndOutsideOfRotaryObjectsAgree) {
  const std::pair<const char*, const char*> keys[] = {{"rope_theta", "main"},
                                                      {"compress_rope_theta", "compress"}};
  for (const auto& [outer, label] : keys) {
    json config = Settings();
    config[outer] = 5000.0;
    EXPECT_THAT(MessageOf(config), HasSubstr(std::string(outer) + " is 5000, but"));
    EXPECT_THAT(MessageOf(config),
                HasSubstr(std::string("rope_parameters.") + label + ".rope_theta is"));
    config["rope_parameters"][label]["rope_theta"] = 5000.0;
    EXPECT_EQ(MessageOf(config), "no error");
    config[outer] = nullptr;
    const ModelConfig read = ParseModelConfig(config.dump());
    EXPECT_EQ((label == std::string("main") ? *read.window_rope : read.rope).theta, 5000.0);
  }
}

// Routers read token ids as float32.
TEST(CompressedConfig, TokenIdsThatRoutersReadAreExact) {
  json config = Settings();
  config["vocab_size"] = 1 << 24;
  EXPECT_EQ(MessageOf(config), "no error");
  config["vocab_size"] = (1 << 24) + 1;
  EXPECT_THAT(MessageOf(config), HasSubstr("vocab_size is 16777217; want at most 16777216"));
  config["mlp_layer_types"] = {"moe", "moe", "moe", "moe"};
  EXPECT_EQ(MessageOf(config), "no error");
}

TEST(CompressedConfig, SensitiveLinearsStayPlain) {
  for (const char* method : {"fp8", "w8a8_fp8", "w8a8_int8", "int4", "nvfp4", "w4afp8"}) {
    SCOPED_TRACE(method);
    const ModelConfig config = ParseModelConfig(Settings().dump(), "", {.method = method});
    const LinearSchemes schemes(config.quantization);
    const auto packed = [&](const std::string& name) {
      return schemes.Of("layers.1." + name).packing != Packing::kPlain;
    };
    for (const char* name :
         {"attn.wo_a", "attn.compressor.wkv", "attn.compressor.wgate", "attn.indexer.wq_b",
          "attn.indexer.compressor.wkv", "attn.indexer.compressor.wgate"})
      EXPECT_FALSE(packed(name)) << name;
    for (const char* name : {"attn.wq_b", "attn.wo_b", "ffn.shared_experts.w1", "ffn.experts.3.w2"})
      EXPECT_TRUE(packed(name)) << name;
    const bool four_bits = method == std::string("int4") || method == std::string("nvfp4");
    for (const char* name : {"attn.wq_a", "attn.wkv"}) EXPECT_EQ(packed(name), !four_bits) << name;
  }
}

// A router by token ids reads rows with the id, which ranks of one MoE-TP group gather.
TEST(CompressedConfig, GatheredRowsOfRoutersAreInTheMemoryPlan) {
  constexpr int kTokens = 48;
  json settings = Settings();
  const auto moe_bytes = [&](const MeshShape& mesh) {
    const ModelConfig config = ParseModelConfig(settings.dump());
    return MemoryOfRank(config, {.max_tokens = kTokens, .context_length = 64}, mesh,
                        {.logit_rows = 1, .states = 2})
        .moe;
  };
  const double split = moe_bytes({.tp = 2, .ep = 1}), whole = moe_bytes({.tp = 2, .ep = 2});
  settings["mlp_layer_types"] = {"moe", "moe", "moe", "moe"};
  EXPECT_EQ(split - moe_bytes({.tp = 2, .ep = 1}), kTokens * (32 + 1) * sizeof(float));
  EXPECT_EQ(whole, moe_bytes({.tp = 2, .ep = 2}));
}

// HeadLinear, which multiplies groups of wo_a, takes float32 rows, and panels need int8 rows.
TEST(CompressedConfig, GroupsOfTheOutputProjectionAreNoPanels) {
  ModelConfig config = ParseModelConfig(Settings().dump());
  config.quantization.int8_group_rows = true;
  for (const Packing packing : {Packing::kPackedInt4, Packing::kWhileLoading}) {
    const auto format = [&](const std::string& name) {
      return ImpliedFormat(config, {.name = name,
                                    .n = 64,
                                    .k = 64,
                                    .rows = {0, 32},
                                    .cols = {0, 64},
                                    .scheme = {.packing = packing,
                                               .format = WeightFormat::kInt4Group,
                                               .group_size = 32,
                                               .zeros = true}});
    };
    EXPECT_EQ(format("layers.0.attn.wo_a.weight"), WeightFormat::kInt4Group);
    EXPECT_EQ(format("layers.0.attn.wo_b.weight"), WeightFormat::kInt4ZeroPanels);
  }
}

// Compared with a count of the keys and entries of each position.
TEST(CompressedConfig, FlopsOfAttentionAreThoseOfKeysAndEntries) {
  const ModelConfig config = ParseModelConfig(Settings().dump());
  const AttentionConfig& a = config.attention;
  for (const int64_t input : {1, 5, 6, 7, 40, 1000}) {
    double want = 0;
    for (const LayerConfig& layer : config.layers) {
      for (int64_t keys = 1; keys <= input; ++keys) {  // of a position
        const int64_t entries = layer.compress > 0 ? keys / layer.compress : 0;
        const int64_t read = layer.overlaps ? std::min(entries, a.index_topk) : entries;
        want += 4.0 * static_cast<double>(a.head_dim * a.heads) *
                static_cast<double>(std::min<int64_t>(keys, layer.window) + read);
        if (layer.overlaps)
          want += 2.0 * static_cast<double>(a.index_heads * a.index_head_dim * entries);
      }
    }
    EXPECT_DOUBLE_EQ(AttentionFlops(config, input), want) << input;
  }
}

// Other kinds: every query reads the keys up to its position, half of the input on average.
TEST(AttentionFlops, GrowWithTheSquareOfTheInput) {
  const auto fixture = [](const char* name) {
    return LoadModelConfig(std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name);
  };
  const ModelConfig llama = fixture("llama"), deepseek = fixture("deepseek_v3");
  const auto width = static_cast<double>(llama.attention.heads * llama.attention.head_dim);
  EXPECT_DOUBLE_EQ(AttentionFlops(llama, 100),
                   2.0 * width * 100 * 100 * static_cast<double>(llama.num_layers()));
  EXPECT_DOUBLE_EQ(AttentionFlops(deepseek, 200), 4 * AttentionFlops(deepseek, 100));
}

}  // namespace
}  // namespace switchyard
