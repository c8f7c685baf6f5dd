#include "model/config_quantization.h"

#include <algorithm>

#include "core/error.h"
#include "model/config_quantization_readers.h"

namespace switchyard {
namespace {

constexpr int64_t kMaxGroup = 1 << 20;

std::vector<ModulePattern> Names(const ConfigReader& reader,
                                 std::initializer_list<std::string_view> keys) {
  std::vector<ModulePattern> patterns;
  for (std::string_view key : keys) {
    for (std::string& name : reader.Strings(key)) {
      // Some lists spell "mlp.gate." so that "mlp.gate_proj" does not match.
      if (name.ends_with('.')) name.pop_back();
      patterns.push_back({ModulePattern::Kind::kName, std::move(name)});
    }
  }
  return patterns;
}

// Hugging Face's fp8. With weight_block_size, scales are of blocks, as in DeepSeek's checkpoints;
// without it, of rows or of the tensor.
QuantizationConfig ReadFp8(const ConfigReader& reader) {
  LinearScheme scheme{.packing = Packing::kFp8, .format = WeightFormat::kFp8Channel};
  const auto block = reader.Ints("weight_block_size", 1, kMaxGroup);
  const bool dynamic = reader.StringOr({"activation_scheme"}, "dynamic") == "dynamic";
  if (block.empty()) {
    scheme.activation = dynamic ? ActivationFormat::kFp8Token : ActivationFormat::kFp8Tensor;
  } else if (block == std::vector<int64_t>{kFp8BlockSize, kFp8BlockSize}) {
    scheme.format = WeightFormat::kFp8Block;
    scheme.activation = ActivationFormat::kFp8Group;
  } else {
    throw Invalid("{} is [{}]; only FP8 with [128, 128] blocks is supported",
                  reader.Where("weight_block_size"), Joined(block, ", "));
  }
  return {.names = {"fp8"},
          .rules = {{scheme, {}}},
          .ignored = Names(reader, {"modules_to_not_convert", "ignored_layers"})};
}

// DeepSeek-V4: routed experts are MXFP4, beside other linears in FP8 blocks. Those that compress
// keys and values are plain.
void ReadExpertType(const ConfigReader& reader, QuantizationConfig* config) {
  constexpr std::string_view kKey = "expert_dtype";
  const std::string type = reader.StringOr({kKey}, "");
  if (type.empty()) return;
  if (type != "fp4" && type != "fp8")
    throw Invalid("{} is \"{}\"; want fp4 or fp8", reader.Where(kKey), type);
  config->ignored.push_back({ModulePattern::Kind::kName, "compressor"});
  if (type == "fp8") return;
  const LinearScheme experts{.packing = Packing::kMxfp4, .format = WeightFormat::kMxfp4};
  config->rules.insert(config->rules.begin(), {experts, {{ModulePattern::Kind::kName, "experts"}}});
}

void RequireFourBits(const ConfigReader& reader, std::initializer_list<std::string_view> keys) {
  const int64_t bits = reader.Int(keys, 1, 64);
  if (bits != 4) {
    throw Invalid("{} is {}; this method supports only 4 bits", reader.Where(*keys.begin()), bits);
  }
}

// GPTQModel's rules for parts of a model: "-:regex" excludes modules from quantization, "+:regex"
// or "regex" changes their settings.
std::vector<ModulePattern> ReadDynamic(const ConfigReader& reader) {
  std::vector<ModulePattern> ignored;
  const auto rules = reader.Object("dynamic");
  if (!rules) return ignored;
  for (const std::string& rule : rules->Members()) {
    if (!rule.starts_with("-:")) {
      throw Invalid("{}: per-module settings are not supported", rules->Where(rule));
    }
    ignored.push_back({ModulePattern::Kind::kRegex, rule.substr(2)});
  }
  return ignored;
}

QuantizationConfig ReadGptq(const ConfigReader& reader) {
  RequireFourBits(reader, {"bits"});
  if (reader.BoolOr("lm_head", false)) {
    throw Invalid("{} is true; a quantized head is not supported", reader.Where("lm_head"));
  }
  const std::string layout = reader.StringOr({"checkpoint_format"}, "gptq");
  if (layout != "gptq" && layout != "gptq_v2") {
    throw Invalid("{} is \"{}\"; supported are gptq and gptq_v2", reader.Where("checkpoint_format"),
                  layout);
  }
  const int64_t group = reader.IntOr({"group_size"}, -1, -1, kMaxGroup);
  const LinearScheme scheme{.packing = Packing::kGptq,
                            .format = WeightFormat::kInt4Group,
                            .group_size = std::max<int64_t>(group, 0),
                            .zeros = !reader.BoolOr("sym", true),
                            .zeros_less_one = layout == "gptq",
                            .act_order = reader.BoolOr("desc_act", false) && group > 0};
  return {.names = {"gptq", "gptq_marlin", "marlin"},
          .rules = {{scheme, {}}},
          .ignored = ReadDynamic(reader)};
}

QuantizationConfig ReadAwq(const ConfigReader& reader) {
  RequireFourBits(reader, {"bits", "w_bit"});
  const std::string version = reader.StringOr({"version"}, "gemm");
  if (version != "gemm" && version != "GEMM") {
    throw Invalid("{} is \"{}\"; AWQ supports only version gemm", reader.Where("version"), version);
  }
  const int64_t group = reader.IntOr({"group_size", "q_group_size"}, 128, -1, kMaxGroup);
  const LinearScheme scheme{.packing = Packing::kAwq,
                            .format = WeightFormat::kInt4Group,
                            .group_size = std::max<int64_t>(group, 0),
                            .zeros = reader.BoolOr("zero_point", true)};
  return {.names = {"awq", "awq_marlin"},
          .rules = {{scheme, {}}},
          .ignored = Names(reader, {"modules_to_not_convert"})};
}

// DeepSeek's checkpoints for SGLang and TensorRT-LLM: int4 experts with e4m3 activations (one scale
// per tensor); all other linears in FP8 blocks.
QuantizationConfig ReadW4aFp8(const ConfigReader& reader) {
  const LinearScheme experts{.packing = Packing::kSignedInt4,
                             .format = WeightFormat::kInt4Group,
                             .group_size = reader.IntOr({"group_size"}, 128, 1, kMaxGroup),
                             .activation = ActivationFormat::kFp8Tensor};
  const LinearScheme others{.packing = Packing::kFp8,
                            .format = WeightFormat::kFp8Block,
                            .activation = ActivationFormat::kFp8Group};
  return {.names = {"w4afp8"},
          .rules = {{experts, {{ModulePattern::Kind::kName, "experts"}}}, {others, {}}},
          .ignored = Names(reader, {"modules_to_not_convert", "ignored_layers"})};
}

QuantizationConfig ReadMethod(const ConfigReader& reader, const std::string& method,
                              bool mxfp4_blocks) {
  if (method == "fp8") return ReadFp8(reader);
  if (method == "compressed-tensors") return ReadCompressedTensors(reader);
  if (method.starts_with("modelopt")) {
    return ReadModelOpt(reader.Object("quantization").value_or(reader));
  }
  if (method == "gptq") return ReadGptq(reader);
  if (method == "awq") return ReadAwq(reader);
  if (method == "w4afp8") return ReadW4aFp8(reader);
  if (method == "mxfp4" && mxfp4_blocks) return {.names = {"mxfp4"}};
  throw Invalid(
      "{} is \"{}\"; supported are fp8, compressed-tensors, modelopt, gptq, awq, w4afp8 and, for "
      "gpt-oss, mxfp4; use another checkpoint of this model",
      reader.Where("quant_method"), method);
}

}  // namespace

QuantizationConfig ReadQuantization(const ConfigReader& reader, bool mxfp4_blocks) {
  auto object = reader.Object("quantization_config");
  if (!object) object = reader.Object("compression_config");
  if (!object) return {};
  const std::string method = object->StringOr({"quant_method"}, "");
  QuantizationConfig config = ReadMethod(*object, method, mxfp4_blocks);
  if (!config.only_cache) config.method = method;
  if (method == "fp8") ReadExpertType(reader, &config);
  try {
    const LinearSchemes checked(config);  // throws on malformed patterns
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("config.json: quantization_config: {}", e.what()));
  }
  return config;
}

QuantizationConfig ReadModelOptFile(const ConfigReader& reader) {
  const auto object = reader.Object("quantization");
  if (!object || !(object->Has("quant_algo") || object->Has("kv_cache_quant_algo"))) return {};
  QuantizationConfig config = ReadModelOpt(*object);
  if (!config.only_cache) config.method = "modelopt";
  return config;
}

}  // namespace switchyard
