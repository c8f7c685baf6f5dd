// Readers of quantization_config, on the spelling of published checkpoints.
#include "model/config_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "model/config.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

QuantizationConfig Read(const std::string& object) {
  return ReadQuantization(ConfigReader(R"({"quantization_config": )" + object + "}", "config.json"),
                          false);
}

std::string ErrorOf(const std::string& object) {
  try {
    Read(object);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// llm-compressor's FP8-dynamic for a MoE model.
TEST(ReadQuantization, CompressedTensorsFp8) {
  const QuantizationConfig config = Read(R"({
    "config_groups": {"group_0": {
      "input_activations": {"actorder": null, "block_structure": null, "dynamic": true,
        "group_size": null, "num_bits": 8, "observer": null, "strategy": "token",
        "symmetric": true, "type": "float"},
      "output_activations": null, "targets": ["Linear"],
      "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
        "num_bits": 8, "observer": "minmax", "strategy": "channel", "symmetric": true,
        "type": "float"}}},
    "format": "float-quantized",
    "ignore": ["lm_head", "re:.*mlp.gate$", "model.layers.0.self_attn.q_proj"],
    "quant_method": "compressed-tensors", "quantization_status": "compressed"})");
  const LinearSchemes schemes(config);
  const LinearScheme& expert = schemes.Of("model.layers.3.mlp.experts.12.down_proj");
  EXPECT_EQ(expert.packing, Packing::kFp8);
  EXPECT_EQ(expert.format, WeightFormat::kFp8Channel);
  EXPECT_EQ(expert.activation, ActivationFormat::kFp8Token);
  EXPECT_EQ(schemes.Of("lm_head").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.3.mlp.gate").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.3.mlp.gate_proj").packing, Packing::kFp8);
  EXPECT_EQ(schemes.Of("model.layers.0.self_attn.q_proj").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.10.self_attn.q_proj").packing, Packing::kFp8);
  EXPECT_THAT(config.names, ::testing::Contains("w8a8_fp8"));
}

TEST(ReadQuantization, CompressedTensorsGroupsByTarget) {
  const LinearSchemes schemes(Read(R"({
    "config_groups": {
      "group_0": {"targets": ["re:.*experts.*"], "format": "pack-quantized",
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64,
                    "symmetric": false, "actorder": "static"}},
      "group_1": {"targets": ["re:.*self_attn.*"], "format": "float-quantized",
        "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                    "block_structure": [128, 128]},
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "group",
                              "group_size": 128, "dynamic": true}}},
    "format": "mixed-precision", "ignore": [], "quant_method": "compressed-tensors"})"));
  const LinearScheme& expert = schemes.Of("model.layers.3.mlp.experts.12.down_proj");
  EXPECT_EQ(expert.packing, Packing::kPackedInt4);
  EXPECT_EQ(expert.group_size, 64);
  EXPECT_TRUE(expert.zeros);
  EXPECT_FALSE(expert.act_order);
  const LinearScheme& attention = schemes.Of("model.layers.3.self_attn.o_proj");
  EXPECT_EQ(attention.format, WeightFormat::kFp8Block);
  EXPECT_EQ(attention.activation, ActivationFormat::kFp8Group);
  EXPECT_EQ(schemes.Of("model.layers.3.mlp.gate_proj").packing, Packing::kPlain);
}

// A target that is a name or a regular expression takes precedence over "Linear", whatever the
// order of the groups.
TEST(ReadQuantization, CompressedTensorsNamesComeBeforeTheClass) {
  const LinearSchemes schemes(Read(R"({
    "config_groups": {
      "group_0": {"targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
      "group_1": {"targets": ["re:.*down_proj"], "format": "pack-quantized",
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}},
      "group_2": {"targets": ["model.layers.0.self_attn.o_proj"], "format": "int-quantized",
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}},
    "quant_method": "compressed-tensors"})"));
  EXPECT_EQ(schemes.Of("model.layers.0.mlp.up_proj").packing, Packing::kFp8);
  EXPECT_EQ(schemes.Of("model.layers.0.mlp.down_proj").packing, Packing::kPackedInt4);
  EXPECT_EQ(schemes.Of("model.layers.0.self_attn.o_proj").packing, Packing::kInt8);
  EXPECT_EQ(schemes.Of("model.layers.1.self_attn.o_proj").packing, Packing::kFp8);
}

TEST(ReadQuantization, CompressedTensorsTransformsAreRefused) {
  const auto error = [](const std::string& transforms) {
    return ErrorOf(R"({"quant_method": "compressed-tensors", "transform_config": )" + transforms +
                   R"(, "config_groups": {"group_0": {"targets": ["Linear"],
                     "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})");
  };
  EXPECT_THAT(error(R"({"config_groups": {"R1": {"type": "hadamard"}}})"),
              HasSubstr("quantization_config.transform_config"));
  EXPECT_EQ(error("{}"), "no error");
  EXPECT_EQ(error("null"), "no error");
}

TEST(ReadQuantization, SchemesOfACacheThatAreNotE4m3AreNamed) {
  const auto of_cache = [](const std::string& scheme) {
    return Read(R"({"quant_method": "compressed-tensors", "kv_cache_scheme": )" + scheme + "}");
  };
  const QuantizationConfig fp8 = of_cache(R"({"num_bits": 8, "type": "float", "dynamic": false,
    "strategy": "tensor", "symmetric": true})");
  EXPECT_EQ(fp8.other_cache, "");
  EXPECT_TRUE(fp8.rules.empty());  // only the cache is quantized
  EXPECT_EQ(of_cache(R"({"num_bits": 8, "type": "int", "strategy": "tensor"})").other_cache,
            "config.json: quantization_config.kv_cache_scheme is int of 8 bits by tensor");
  const auto model_opt = [](const std::string& algorithms) {
    return Read(R"({"quant_method": "modelopt", )" + algorithms + "}");
  };
  EXPECT_EQ(model_opt(R"("quant_algo": "FP8", "kv_cache_quant_algo": "FP8")").other_cache, "");
  EXPECT_TRUE(model_opt(R"("quant_algo": null, "kv_cache_quant_algo": "FP8")").rules.empty());
  EXPECT_THAT(model_opt(R"("quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4")").other_cache,
              HasSubstr("kv_cache_quant_algo is NVFP4"));
  // config.json describes the cache by an object.
  const QuantizationConfig e4m3 =
      model_opt(R"("kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"})");
  EXPECT_EQ(e4m3.other_cache, "");
  EXPECT_TRUE(e4m3.rules.empty());
  EXPECT_EQ(model_opt(R"("kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "int"})")
                .other_cache,
            "config.json: quantization_config.kv_cache_scheme is int of 8 bits by tensor");
  const QuantizationConfig four =
      model_opt(R"("quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 4, "type": "float"})");
  EXPECT_THAT(four.other_cache, HasSubstr("kv_cache_scheme is float of 4 bits"));
  EXPECT_EQ(four.rules.size(), 1u);
  EXPECT_EQ(four.method, "modelopt");
  EXPECT_THAT(ErrorOf(R"({"quant_method": "modelopt", "kv_cache_scheme": null})"),
              HasSubstr("quant_algo"));
}

// Weights beside a quantized cache are plain, so --quantization applies to them.
TEST(ReadQuantization, AQuantizedCacheAloneLeavesTheWeightsPlain) {
  constexpr const char* kScheme = R"("kv_cache_scheme": {"num_bits": 8, "type": "float"})";
  for (const std::string& object :
       {std::string(R"("quant_method": "compressed-tensors", )") + kScheme,
        std::string(R"("quant_method": "compressed-tensors", "config_groups": {}, )") + kScheme,
        std::string(R"("quant_method": "modelopt", )") + kScheme,
        std::string(R"("quant_method": "modelopt", "kv_cache_quant_algo": "FP8")")}) {
    SCOPED_TRACE(object);
    QuantizationConfig config = Read("{" + object + "}");
    EXPECT_TRUE(config.only_cache);
    EXPECT_EQ(config.method, "");
    EXPECT_TRUE(config.none());
    ApplyFlags({.method = config.names.at(0)}, &config);
    EXPECT_TRUE(config.none());
    ApplyFlags({.method = "int4"}, &config);
    EXPECT_EQ(LinearSchemes(config).Of("model.layers.0.mlp.experts.0.up_proj").packing,
              Packing::kWhileLoading);
  }
  const QuantizationConfig mxfp4 = ReadQuantization(
      ConfigReader(R"({"quantization_config": {"quant_method": "mxfp4"}})", "config.json"), true);
  EXPECT_TRUE(mxfp4.mxfp4_blocks());
  EXPECT_FALSE(mxfp4.only_cache);
}

TEST(ReadQuantization, GptqAndItsRules) {
  const QuantizationConfig config = Read(R"({
    "bits": 4, "group_size": 128, "desc_act": true, "sym": true, "lm_head": false,
    "checkpoint_format": "gptq_v2", "dynamic": {"-:.*shared_expert.*": {}},
    "quant_method": "gptq", "damp_percent": 0.1, "true_sequential": true})");
  const LinearSchemes schemes(config);
  const LinearScheme& expert = schemes.Of("model.layers.0.mlp.experts.1.up_proj");
  EXPECT_EQ(expert.packing, Packing::kGptq);
  EXPECT_TRUE(expert.act_order);
  EXPECT_FALSE(expert.zeros);
  EXPECT_FALSE(expert.zeros_less_one);
  EXPECT_EQ(schemes.Of("model.layers.0.mlp.shared_expert.up_proj").packing, Packing::kPlain);
  EXPECT_THAT(ErrorOf(R"({"quant_method": "gptq", "bits": 8})"), HasSubstr("only 4 bits"));
  EXPECT_THAT(ErrorOf(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}})"),
              HasSubstr("+:.*"));
  EXPECT_THAT(ErrorOf(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}})"),
              HasSubstr("regular expression"));
}

TEST(ReadQuantization, AwqKeepsWhatItDoesNotConvert) {
  const LinearSchemes schemes(Read(R"({"quant_method": "awq", "bits": 4, "group_size": 64,
    "zero_point": true, "version": "gemm",
    "modules_to_not_convert": ["mlp.gate.", "shared_expert_gate"]})"));
  EXPECT_EQ(schemes.Of("model.layers.0.mlp.gate").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.0.mlp.shared_expert_gate").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.0.mlp.gate_proj").packing, Packing::kAwq);
}

// nvidia's DeepSeek-R1-FP4: patterns name modules or enclosing modules.
TEST(ReadQuantization, ModelOptExcludesByPattern) {
  const LinearSchemes schemes(Read(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
    "group_size": 16, "kv_cache_scheme": null,
    "ignore": ["lm_head", "model.layers.1.self_attn*", "model.layers.?.mlp.gate"]})"));
  EXPECT_EQ(schemes.Of("model.layers.1.self_attn.q_a_proj").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.2.self_attn.q_a_proj").packing, Packing::kModelOptNvfp4);
  EXPECT_EQ(schemes.Of("model.layers.2.mlp.gate").packing, Packing::kPlain);
  EXPECT_EQ(schemes.Of("model.layers.2.mlp.gate_proj").packing, Packing::kModelOptNvfp4);
}

TEST(ReadQuantization, ModelOptsOwnFileCountsWhereConfigSaysNothing) {
  const auto quantized = std::filesystem::path(SWITCHYARD_TEST_DATA) / "quantized";
  EXPECT_EQ(LoadModelConfig(quantized / "modelopt_fp8").quantization.method, "modelopt");
}

TEST(ReadQuantization, ModelOptsOwnFileIsNotReadIfConfigDescribesTheCache) {
  const auto from = std::filesystem::path(SWITCHYARD_TEST_DATA) / "quantized/modelopt_fp8";
  const TemporaryDirectory dir;
  std::filesystem::copy_file(from / "hf_quant_config.json", dir.path() / "hf_quant_config.json");
  std::ifstream file(from / "config.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.insert(text.find('{') + 1, R"("quantization_config": {"quant_method": "modelopt",
      "kv_cache_scheme": {"num_bits": 8, "type": "float"}},)");
  std::ofstream(dir.path() / "config.json") << text;
  const QuantizationConfig config = LoadModelConfig(dir.path()).quantization;
  EXPECT_TRUE(config.only_cache);
  EXPECT_TRUE(config.none());
}

TEST(ReadQuantization, Fp8WithoutBlocksHasScalesOfRows) {
  const auto scheme = [](const std::string& extra) {
    return Read(R"({"quant_method": "fp8")" + extra + "}").rules.at(0).scheme;
  };
  EXPECT_EQ(scheme("").format, WeightFormat::kFp8Channel);
  EXPECT_EQ(scheme("").activation, ActivationFormat::kFp8Token);
  EXPECT_EQ(scheme(R"(, "activation_scheme": "static")").activation, ActivationFormat::kFp8Tensor);
  EXPECT_EQ(scheme(R"(, "weight_block_size": [128, 128])").format, WeightFormat::kFp8Block);
}

TEST(QuantizationRules, MistakesAreNamed) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      ReadQuantizationRules(text);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const auto rule = [](const std::string& fields) { return R"({"rules": [{)" + fields + "}]}"; };
  EXPECT_EQ(error(rule(R"("targets": ["lm_head"], "method": "none")")), "no error");
  EXPECT_THAT(error("/nonexistent"), HasSubstr("/nonexistent"));
  EXPECT_THAT(error("{}"), HasSubstr("rules is empty"));
  EXPECT_THAT(error(R"({"rules": 3})"), HasSubstr("rules is 3"));
  EXPECT_THAT(error(R"({"rules": [3]})"), HasSubstr("rules holds 3"));
  EXPECT_THAT(error(R"({"groups": []})"), HasSubstr("groups: unknown key"));
  EXPECT_THAT(error(rule(R"("method": "int4")")), HasSubstr("rules[0].targets is empty"));
  EXPECT_THAT(error(rule(R"("targets": ["q"], "method": "q4_k")")), HasSubstr("q4_k"));
  EXPECT_THAT(error(rule(R"("targets": ["q"], "bits": 4)")), HasSubstr("bits: unknown key"));
  EXPECT_THAT(error(rule(R"("targets": ["q"], "method": "int4", "group_size": 33)")),
              HasSubstr("want a multiple of 2"));
  EXPECT_THAT(error(rule(R"("targets": ["q"], "method": "mxfp4", "group_size": 32)")),
              HasSubstr("only method int4"));
}

}  // namespace
}  // namespace switchyard
