// `--quantization-config`.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "model/config_quantization_readers.h"

namespace switchyard {
namespace {

// The methods, their other names and their defaults are those of `switchyard quantize --config`.
constexpr int64_t kDefaultInt4Columns = 32, kMostInt4Columns = 1 << 20;

std::string TextOf(const std::string& location) {
  if (location.find('{') != std::string::npos) return location;
  std::ifstream file(location, std::ios::binary);
  if (!file) throw Invalid("--quantization-config {}: cannot read the file", location);
  return {std::istreambuf_iterator<char>(file), {}};
}

LinearScheme SchemeOfRule(const ConfigReader& rule) {
  using W = WeightFormat;
  using A = ActivationFormat;
  const std::string method = rule.StringOr({"method"}, "");
  LinearScheme scheme{.packing = Packing::kWhileLoading};
  if (method == "none") {
    scheme.packing = Packing::kPlain;
  } else if (method == "fp8") {
    scheme.format = W::kFp8Block;
    scheme.activation = A::kFp8Group;
  } else if (method == "w8a8_fp8" || method == "fp8-channel") {
    scheme.format = W::kFp8Channel;
    scheme.activation = A::kFp8Token;
  } else if (method == "w8a8_int8" || method == "int8") {
    scheme.format = W::kInt8Channel;
    scheme.activation = A::kInt8Token;
  } else if (method == "int4") {
    scheme.format = W::kInt4Group;
    scheme.group_size = rule.IntOr({"group_size"}, kDefaultInt4Columns, 2, kMostInt4Columns);
    if (scheme.group_size % 2 != 0) throw Invalid("{} is odd", rule.Where("group_size"));
    scheme.zeros = rule.BoolOr("zero_points", false);
  } else if (method == "mxfp4") {
    scheme.format = W::kMxfp4;
  } else if (method == "nvfp4") {
    scheme.format = W::kNvfp4;
  } else {
    throw Invalid("{} is \"{}\"; want fp8, w8a8_fp8, int8, int4, mxfp4, nvfp4 or none",
                  rule.Where("method"), method);
  }
  if (rule.Has("group_size") && method != "int4")
    throw Invalid("{}: only int4 has groups of a chosen size", rule.Where("group_size"));
  if (rule.Has("zero_points") && method != "int4")
    throw Invalid("{}: only int4 has zero points", rule.Where("zero_points"));
  return scheme;
}

void CheckKeys(const ConfigReader& reader, std::initializer_list<std::string_view> known) {
  for (const std::string& key : reader.Members()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw Invalid("{}: unknown key", reader.Where(key));
  }
}

}  // namespace

std::vector<SchemeRule> ReadQuantizationRules(const std::string& location) {
  const ConfigReader reader(TextOf(location), "--quantization-config");
  CheckKeys(reader, {"rules"});
  std::vector<SchemeRule> rules;
  for (const ConfigReader& rule : reader.Objects("rules")) {
    CheckKeys(rule, {"targets", "method", "group_size", "zero_points"});
    SchemeRule& out = rules.emplace_back(SchemeRule{SchemeOfRule(rule), {}});
    for (std::string& name : rule.Strings("targets")) {
      const bool regex = name.starts_with("re:");
      out.targets.push_back({regex ? ModulePattern::Kind::kRegex : ModulePattern::Kind::kName,
                             regex ? name.substr(3) : std::move(name)});
    }
    if (out.targets.empty()) throw Invalid("{} is empty", rule.Where("targets"));
  }
  if (rules.empty()) throw Invalid("{} is empty", reader.Where("rules"));
  return rules;
}

}  // namespace switchyard
