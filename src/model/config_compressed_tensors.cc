// Reader of compressed-tensors, the format of llm-compressor: `config_groups` of {targets, weights,
// input_activations, format}, and an `ignore` list. Field names and meaning as in
// https://github.com/vllm-project/compressed-tensors (quantization/quant_args.py, quant_scheme.py).
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "model/config_quantization_readers.h"

namespace switchyard {
namespace {

constexpr const char* kEveryLinear = "Linear";  // the class of all linears

// Parses module names; a "re:" prefix marks a regular expression.
std::vector<ModulePattern> Patterns(const std::vector<std::string>& names) {
  std::vector<ModulePattern> out;
  for (const std::string& name : names) {
    if (name.starts_with("re:")) {
      out.push_back({ModulePattern::Kind::kRegex, name.substr(3)});
    } else {
      out.push_back({ModulePattern::Kind::kName, name});
    }
  }
  return out;
}

// Quantization parameters of a group's weights or inputs.
struct QuantArgs {
  int64_t bits = 0;
  std::string type, strategy;
  int64_t group_size = 0;
  bool symmetric = true, dynamic = false;
};

QuantArgs ReadQuantArgs(const ConfigReader& reader) {
  QuantArgs n;
  n.bits = reader.IntOr({"num_bits"}, 8, 1, 64);
  n.type = reader.StringOr({"type"}, "int");
  n.group_size = std::max<int64_t>(0, reader.IntOr({"group_size"}, 0, -1, 1 << 20));
  n.strategy = reader.StringOr({"strategy"}, n.group_size > 0 ? "group" : "tensor");
  n.symmetric = reader.BoolOr("symmetric", true);
  // "local": dynamic scales of inputs, within a stored scale of the tensor.
  n.dynamic = reader.IsString("dynamic") || reader.BoolOr("dynamic", false);
  return n;
}

[[noreturn]] void Refuse(const ConfigReader& weights, const QuantArgs& n, std::string_view format) {
  throw Invalid(
      "{}: {} of {} bits by {} in format \"{}\" is not supported; supported are float 8 by tensor, "
      "channel and block [128, 128], int 8 by tensor and channel (int-quantized), int 4 by group "
      "and channel (pack-quantized), float 4 by groups of 16 or 32",
      weights.Where("num_bits"), n.type, n.bits, n.strategy, format);
}

bool IsActOrder(const ConfigReader& weights) {
  if (!weights.Has("actorder")) return false;
  if (!weights.IsString("actorder")) return weights.BoolOr("actorder", false);
  // "weight" and "static" do not reorder columns.
  const std::string order = weights.StringOr({"actorder"}, "");
  return order == "group" || order == "dynamic";
}

LinearScheme WeightScheme(const ConfigReader& weights, const std::string& format) {
  const QuantArgs n = ReadQuantArgs(weights);
  const bool whole_rows = n.strategy == "tensor" || n.strategy == "channel";
  if (n.type == "float" && n.bits == 8 && n.symmetric) {
    if (whole_rows) return {.packing = Packing::kFp8, .format = WeightFormat::kFp8Channel};
    const std::vector<int64_t> block{kFp8BlockSize, kFp8BlockSize};
    if (n.strategy == "block" && weights.Ints("block_structure", 1, 1 << 20) == block) {
      return {.packing = Packing::kFp8, .format = WeightFormat::kFp8Block};
    }
  }
  if (n.type == "int" && n.bits == 8 && n.symmetric && whole_rows && format != "pack-quantized") {
    return {.packing = Packing::kInt8, .format = WeightFormat::kInt8Channel};
  }
  if (n.type == "int" && n.bits == 4 && (n.strategy == "group" || n.strategy == "channel") &&
      format == "pack-quantized") {
    return {.packing = Packing::kPackedInt4,
            .format = WeightFormat::kInt4Group,
            .group_size = n.strategy == "group" ? n.group_size : 0,
            .zeros = !n.symmetric,
            .act_order = IsActOrder(weights)};
  }
  if (n.type == "float" && n.bits == 4 && n.symmetric && n.group_size == kNvfp4BlockSize) {
    return {.packing = Packing::kNvfp4, .format = WeightFormat::kNvfp4};
  }
  if (n.type == "float" && n.bits == 4 && n.symmetric && n.group_size == kMxfp4BlockSize) {
    return {.packing = Packing::kMxfp4, .format = WeightFormat::kMxfp4};
  }
  Refuse(weights, n, format);
}

// Four-bit inputs are not used in computation: such rows stay float32. For int8 inputs, a dynamic
// scale for each row replaces the static scale of the checkpoint, because it is finer.
ActivationFormat InputFormat(const QuantArgs& n) {
  if (n.bits != 8) return ActivationFormat::kNone;
  if (n.type == "int") return ActivationFormat::kInt8Token;
  if (n.strategy == "group") return ActivationFormat::kFp8Group;
  return n.strategy == "tensor" && !n.dynamic ? ActivationFormat::kFp8Tensor
                                              : ActivationFormat::kFp8Token;
}

// Names accepted by `--quantization` for this scheme, including those of SGLang's kernels for 8-bit
// schemes.
std::vector<std::string> FlagNames(const std::vector<SchemeRule>& rules) {
  std::vector<std::string> names{"compressed-tensors"};
  const auto all = [&](WeightFormat format) {
    return std::ranges::all_of(rules,
                               [&](const SchemeRule& r) { return r.scheme.format == format; });
  };
  if (all(WeightFormat::kInt8Channel)) names.emplace_back("w8a8_int8");
  if (all(WeightFormat::kFp8Channel)) names.emplace_back("w8a8_fp8");
  return names;
}

}  // namespace

std::string OtherCache(const ConfigReader& reader) {
  const auto scheme = reader.Object("kv_cache_scheme");
  if (!scheme) return "";
  const QuantArgs n = ReadQuantArgs(*scheme);
  if (n.type == "float" && n.bits == 8 && n.symmetric) return "";
  return fmt::format("{} is {}{} of {} bits by {}", reader.Where("kv_cache_scheme"),
                     n.symmetric ? "" : "asymmetric ", n.type, n.bits, n.strategy);
}

QuantizationConfig ReadCompressedTensors(const ConfigReader& reader) {
  const auto transforms = reader.Object("transform_config");
  if (transforms && !transforms->Members().empty()) {
    throw Invalid("{} is set; rotations of weights and inputs (SpinQuant, QuIP) are not supported",
                  reader.Where("transform_config"));
  }
  QuantizationConfig config;
  std::vector<SchemeRule> of_every_linear;  // lower priority than names and regular expressions
  const std::string format = reader.StringOr({"format"}, "");
  config.other_cache = OtherCache(reader);
  const auto groups = reader.Object("config_groups");
  const bool no_groups = !groups || groups->Members().empty();
  config.only_cache = no_groups && reader.Object("kv_cache_scheme");
  config.names = {"compressed-tensors"};
  if (config.only_cache) return config;
  if (!groups) throw Invalid("{} is missing", reader.Where("config_groups"));
  for (const std::string& name : groups->Members()) {
    const auto group = groups->Object(name);
    const auto weights = group ? group->Object("weights") : std::nullopt;
    if (!weights) throw Invalid("{} has no weights", groups->Where(name));
    LinearScheme scheme = WeightScheme(*weights, group->StringOr({"format"}, format));
    if (const auto inputs = group->Object("input_activations")) {
      scheme.activation = InputFormat(ReadQuantArgs(*inputs));
    }
    std::vector<std::string> targets = group->Strings("targets");
    // A group without targets applies to every linear.
    const bool no_targets = targets.empty();
    if (std::erase(targets, kEveryLinear) != 0 || no_targets) {
      of_every_linear.push_back({scheme, {}});
    }
    if (!targets.empty()) config.rules.push_back({scheme, Patterns(targets)});
  }
  config.rules.insert(config.rules.end(), of_every_linear.begin(), of_every_linear.end());
  config.ignored = Patterns(reader.Strings("ignore"));
  config.names = FlagNames(config.rules);
  return config;
}

}  // namespace switchyard
