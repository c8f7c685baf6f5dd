// Compares with tests/data/rope/goldens.json: the formulae evaluated in numpy, in float32 where
// transformers uses float32.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

RopeConfig FromGolden(const json& r) {
  RopeConfig rope;
  const std::string type = r["type"];
  rope.type = type == "linear"   ? RopeConfig::Type::kLinear
              : type == "llama3" ? RopeConfig::Type::kLlama3
              : type == "yarn"   ? RopeConfig::Type::kYarn
                                 : RopeConfig::Type::kDefault;
  rope.rotary_dim = r["dim"];
  rope.theta = r["theta"];
  rope.factor = r.value("factor", 1.0);
  rope.original_max_position = r.value("orig", 0);
  rope.low_freq_factor = r.value("low", 1.0);
  rope.high_freq_factor = r.value("high", 4.0);
  rope.beta_fast = r.value("fast", 32.0);
  rope.beta_slow = r.value("slow", 1.0);
  rope.mscale = r.value("mscale", 0.0);
  rope.mscale_all_dim = r.value("all", 0.0);
  rope.truncate = r.value("truncate", true);
  if (r.contains("af")) rope.attention_factor = r["af"].get<double>();
  return rope;
}

TEST(Rope, MatchesTheFormulae) {
  std::ifstream file(SWITCHYARD_TEST_DATA "/rope/goldens.json");
  const json goldens = json::parse(file);
  ASSERT_GE(goldens.size(), 8u);
  for (const json& golden : goldens) {
    SCOPED_TRACE(golden["rope"]["name"].get<std::string>());
    const RopeConfig rope = FromGolden(golden["rope"]);
    EXPECT_NEAR(RopeAttentionFactor(rope), golden["attention_factor"].get<double>(), 1e-12);

    const auto want = golden["inverse_frequencies"].get<std::vector<float>>();
    const auto got = InverseFrequencies(rope);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1.0f, 3e-7f) << i;

    const Tensor table = BuildCosSin(rope, 5001);
    ASSERT_EQ(table.shape(), (std::vector<int64_t>{5001, rope.rotary_dim}));
    for (const auto& [position, row] : golden["rows"].items()) {
      const float* at = table.data<float>() + std::stoll(position) * rope.rotary_dim;
      // An angle of thousands of radians keeps three decimals in float32; half an ulp of a
      // frequency changes it by as much.
      const float tolerance = std::stoll(position) > 100 ? 2e-3f : 5e-5f;
      for (int64_t i = 0; i < rope.rotary_dim; ++i) {
        EXPECT_NEAR(at[i], row[i].get<float>(), tolerance) << position << " " << i;
      }
    }
  }
}

// tests/data/rope/by_length.json: results of transformers' LlamaRotaryEmbedding for the last token
// of a sequence that grew to each length, as in generate.
TEST(Rope, RowsOfTypesThatChangeWithTheLength) {
  std::ifstream file(SWITCHYARD_TEST_DATA "/rope/by_length.json");
  const json goldens = json::parse(file);
  ASSERT_GE(goldens.size(), 5u);
  for (const json& golden : goldens) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const int64_t dim = golden["dim"];
    const json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"vocab_size", 8},
                         {"hidden_size", 2 * dim},
                         {"intermediate_size", 8},
                         {"num_hidden_layers", 1},
                         {"num_attention_heads", 2},
                         {"head_dim", dim},
                         {"max_position_embeddings", golden["max_position"]},
                         {"rope_theta", golden["theta"]},
                         {"rope_scaling", golden["rope_scaling"]}};
    const ModelConfig model = ParseModelConfig(config.dump());
    const Tensor table = BuildCosSin(model.rope, 256);
    for (const auto& [position, row] : golden["rows"].items()) {
      const float* at = table.data<float>() + std::stoll(position) * dim;
      for (int64_t i = 0; i < dim; ++i)
        EXPECT_NEAR(at[i], row[i].get<float>(), 5e-5f) << position << " " << i;
    }
  }
}

TEST(Rope, LongestContextIsWhatTheScalingIsFor) {
  const auto longest = [](const std::string& scaling) {
    return ParseModelConfig(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 8,
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 1024, "rope_scaling": )" +
                            scaling + "}")
        .longest_context();
  };
  EXPECT_EQ(longest("null"), 1024);
  EXPECT_EQ(longest(R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512})"),
            2048);
  EXPECT_EQ(longest(R"({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128})"),
            1024);
  EXPECT_EQ(longest(R"({"type": "yarn", "factor": 4.0})"), 4096);
  EXPECT_EQ(longest(R"({"type": "linear", "factor": 2.0})"), 2048);
  EXPECT_EQ(longest(R"({"type": "dynamic", "factor": 2.0})"), 2048);
}

TEST(Rope, LayersWithAWindowMayHaveTheirOwn) {
  const auto parse = [](const std::string& rope) {
    return ParseModelConfig(R"({"architectures": ["MiMoV2FlashForCausalLM"], "vocab_size": 8,
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 24, "v_head_dim": 8, "moe_intermediate_size": 4,
        "n_routed_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 64, )" +
                            rope + "}");
  };
  const auto error = [&](const std::string& rope) -> std::string {
    try {
      parse(rope);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  ModelConfig c = parse(R"("rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0,
                         "partial_rotary_factor": 0.5},
      "sliding_attention": {"rope_type": "default", "rope_theta": 10.0}})");
  EXPECT_EQ(c.rope_of(0).type, RopeConfig::Type::kLinear);
  EXPECT_EQ(c.rope_of(0).theta, 100.0);
  EXPECT_EQ(c.rope_of(0).rotary_dim, 12);
  EXPECT_EQ(c.rope_of(1).type, RopeConfig::Type::kDefault);
  EXPECT_EQ(c.rope_of(1).theta, 10.0);
  EXPECT_EQ(c.rope_of(1).rotary_dim, 8);  // 0.334 of 24
  EXPECT_EQ(c.longest_context(), 128);

  c = parse(R"("rope_theta": 100, "swa_rope_theta": 10, "partial_rotary_factor": 0.25)");
  EXPECT_EQ(c.rope_of(0).theta, 100.0);
  EXPECT_EQ(c.rope_of(1).theta, 10.0);
  EXPECT_EQ(c.rope_of(1).rotary_dim, 6);

  EXPECT_NE(error(R"("rope_parameters": {"rope_theta": 100.0})").find("for each layer type"),
            std::string::npos);
  EXPECT_NE(error(R"("rope_parameters": {"full_attention": {"llama_4_scaling_beta": 0.1}})")
                .find("rope_parameters.full_attention.llama_4_scaling_beta is 0.1"),
            std::string::npos);
}

TEST(Rope, MistralHasASlidingWindowUnlessConfigHasNull) {
  const auto window = [](const std::string& key) {
    return ParseModelConfig(R"({"architectures": ["MistralForCausalLM"], "vocab_size": 8,
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 64)" +
                            key + "}")
        .layers[0]
        .window;
  };
  EXPECT_EQ(window(""), 4096);
  EXPECT_EQ(window(R"(, "sliding_window": null)"), 0);
  EXPECT_EQ(window(R"(, "sliding_window": 7)"), 7);
}

}  // namespace
}  // namespace switchyard
