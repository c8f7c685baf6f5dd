#include "model/quantizer/config_writer.h"

#include <fmt/format.h>

#include <cctype>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "model/config_reader.h"

namespace switchyard {
namespace {

using nlohmann::ordered_json;

// Names of formats and fields: https://github.com/vllm-project/compressed-tensors
// (config/base.py, quantization/quant_args.py, quantization/quant_scheme.py).
struct Written {
  const char* format;
  ordered_json weights;
  ordered_json inputs = nullptr;
};

ordered_json Args(int bits, const char* type, const char* strategy) {
  return {{"num_bits", bits},     {"type", type},     {"symmetric", true},
          {"strategy", strategy}, {"dynamic", false}, {"group_size", nullptr}};
}

ordered_json Inputs(const char* type, const char* strategy) {
  ordered_json args = Args(8, type, strategy);
  args["dynamic"] = true;
  return args;
}

Written WrittenAs(const LinearScheme& scheme) {
  switch (scheme.format) {
    case WeightFormat::kInt4Group: {
      Written w{"pack-quantized", Args(4, "int", "group")};
      w.weights["symmetric"] = !scheme.zeros;
      w.weights["group_size"] = scheme.group_size;
      return w;
    }
    case WeightFormat::kInt8Channel:
      return {"int-quantized", Args(8, "int", "channel"), Inputs("int", "token")};
    case WeightFormat::kFp8Channel:
      return {"float-quantized", Args(8, "float", "channel"), Inputs("float", "token")};
    case WeightFormat::kFp8Block: {
      Written w{"float-quantized", Args(8, "float", "block"), Inputs("float", "group")};
      w.weights["block_structure"] = {kFp8BlockSize, kFp8BlockSize};
      w.inputs["group_size"] = kFp8BlockSize;
      return w;
    }
    case WeightFormat::kMxfp4: {
      Written w{"mxfp4-pack-quantized", Args(4, "float", "group")};
      w.weights["group_size"] = kMxfp4BlockSize;
      w.weights["scale_dtype"] = "torch.uint8";
      return w;
    }
    case WeightFormat::kNvfp4: {
      Written w{"nvfp4-pack-quantized", Args(4, "float", "tensor_group")};
      w.weights["group_size"] = kNvfp4BlockSize;
      w.weights["scale_dtype"] = "torch.float8_e4m3fn";
      return w;
    }
    default:
      CheckFailed(__FILE__, __LINE__, "not a packed format");
  }
}

// A pattern as readers of the format match it: a whole name, or a regular expression from the start
// of the name.
std::string Target(const ModulePattern& pattern) {
  if (pattern.kind == ModulePattern::Kind::kRegex) return "re:" + pattern.text;
  std::string name;
  for (const char c : pattern.text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    if (!plain) name += '\\';
    name += c;
  }
  return fmt::format("re:(?:.*\\.)?{}(?:\\..*)?$", name);
}

}  // namespace

std::string PackedConfig(const std::string& text, const QuantizePlan& plan) {
  // Drops the rules with a plain scheme, because their linears are in plan.plain.
  std::vector<SchemeRule> rules = plan.config.quantization.rules;
  std::erase_if(rules, [](const SchemeRule& r) { return r.scheme.packing == Packing::kPlain; });
  ordered_json groups = ordered_json::object();
  std::string format;
  for (size_t i = 0; i < rules.size(); ++i) {
    Written written = WrittenAs(rules[i].scheme);
    ordered_json targets = ordered_json::array();
    for (const ModulePattern& pattern : rules[i].targets) targets.push_back(Target(pattern));
    // The last rule is that of all linears that are not ignored.
    if (targets.empty() || rules.size() == 1) targets = ordered_json::array({"Linear"});
    groups[fmt::format("group_{}", i)] = {{"targets", targets},
                                          {"weights", std::move(written.weights)},
                                          {"input_activations", std::move(written.inputs)},
                                          {"output_activations", nullptr},
                                          {"format", written.format}};
    format = i == 0 || format == written.format ? written.format : "mixed-precision";
  }
  ordered_json config = ordered_json::parse(WithoutInfinities(text));
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", format},
                                   {"quantization_status", "compressed"},
                                   {"config_groups", std::move(groups)},
                                   {"ignore", plan.plain},
                                   {"kv_cache_scheme", nullptr},
                                   {"global_compression_ratio", nullptr}};
  return config.dump(2) + "\n";
}

}  // namespace switchyard
