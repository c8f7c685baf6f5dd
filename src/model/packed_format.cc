#include "model/packed_format.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr int64_t kMaxGroup = 1 << 20;

LinearScheme ReadScheme(const ConfigReader& rule, int64_t group_unit) {
  PackedFormat format;
  format.name = rule.StringOr({"method"}, "");
  format.group_size = rule.IntOr({"group_size"}, format.group_size, 1, kMaxGroup);
  format.zero_points = rule.BoolOr("zero_points", false);
  for (const char* key : {"group_size", "zero_points"}) {
    if (format.name != "int4" && rule.Has(key))
      throw Invalid("{}: only method int4 has this key, and method is \"{}\"", rule.Where(key),
                    format.name);
  }
  if (format.name == "none") return {};
  const char* key = format.name == "int4" ? "group_size" : "method";
  return SchemeOf(format, group_unit, rule.Where(key));
}

void CheckKeys(const ConfigReader& reader, const std::vector<std::string>& known) {
  for (const std::string& key : reader.Members()) {
    if (std::ranges::count(known, key) == 0)
      throw Invalid("{}: unknown key; want {}", reader.Where(key), Joined(known, ", "));
  }
}

}  // namespace

LinearScheme SchemeOf(const PackedFormat& format, int64_t group_unit, const std::string& where) {
  using W = WeightFormat;
  using A = ActivationFormat;
  const auto scheme = [](W weights, A inputs) {
    return LinearScheme{.packing = Packing::kWhileLoading, .format = weights, .activation = inputs};
  };
  if (format.name == "int8" || format.name == "w8a8_int8")
    return scheme(W::kInt8Channel, A::kInt8Token);
  if (format.name == "fp8") return scheme(W::kFp8Block, A::kFp8Group);
  if (format.name == "fp8-channel" || format.name == "w8a8_fp8")
    return scheme(W::kFp8Channel, A::kFp8Token);
  if (format.name == "mxfp4") return scheme(W::kMxfp4, A::kNone);
  if (format.name == "nvfp4") return scheme(W::kNvfp4, A::kNone);
  if (format.name != "int4")
    throw Invalid("{}: \"{}\" is unknown; want one of {}", where, format.name, kPackedFormats);
  if (format.group_size <= 0 || format.group_size % group_unit != 0) {
    throw Invalid("{}: group size {} of int4; want a multiple of {}", where, format.group_size,
                  group_unit);
  }
  LinearScheme int4 = scheme(W::kInt4Group, A::kNone);
  int4.group_size = format.group_size;
  int4.zeros = format.zero_points;
  return int4;
}

ModulePattern ParsePattern(const std::string& text) {
  if (text.starts_with("re:")) return {ModulePattern::Kind::kRegex, text.substr(3)};
  return {ModulePattern::Kind::kName, text};
}

std::vector<SchemeRule> ReadSchemeRules(const ConfigReader& reader, int64_t group_unit) {
  CheckKeys(reader, {"rules"});
  std::vector<SchemeRule> rules;
  for (const ConfigReader& rule : reader.Objects("rules")) {
    CheckKeys(rule, {"targets", "method", "group_size", "zero_points"});
    SchemeRule& out = rules.emplace_back();
    for (const std::string& target : rule.Strings("targets"))
      out.targets.push_back(ParsePattern(target));
    if (out.targets.empty()) throw Invalid("{} is empty", rule.Where("targets"));
    out.scheme = ReadScheme(rule, group_unit);
  }
  if (rules.empty()) throw Invalid("{} is empty", reader.Where("rules"));
  return rules;
}

}  // namespace switchyard
