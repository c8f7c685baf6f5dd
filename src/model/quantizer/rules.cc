#include "model/quantizer/rules.h"

#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/regular_file.h"
#include "model/config_reader.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxRulesBytes = 1 << 20;
constexpr int64_t kMaxGroup = 1 << 20;
constexpr size_t kMostRules = 9;  // config_groups are sorted by name, group_0 … group_9

LinearScheme ReadScheme(const ConfigReader& rule) {
  PackedFormat format;
  format.name = rule.StringOr({"method"}, "");
  format.group_size = rule.IntOr({"group_size"}, format.group_size, 1, kMaxGroup);
  format.zero_points = rule.BoolOr("zero_points", false);
  for (const char* key : {"group_size", "zero_points"}) {
    if (format.name != "int4" && rule.Has(key)) {
      throw Invalid("{}: needs method \"int4\", but method is \"{}\"", rule.Where(key),
                    format.name);
    }
  }
  if (format.name == "none") return {};
  return SchemeOf(format, rule.Where("method"));
}

void RefuseOtherKeys(const ConfigReader& reader, const std::set<std::string>& known) {
  for (const std::string& key : reader.Members()) {
    if (known.contains(key)) continue;
    throw Invalid("{}: unknown; known keys: {}", reader.Where(key), Joined(known, ", "));
  }
}

}  // namespace

LinearScheme SchemeOf(const PackedFormat& format, const std::string& where) {
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
  if (format.name != "int4") {
    throw Invalid("{}: \"{}\" is unknown; want one of {}", where, format.name, kPackedFormats);
  }
  if (format.group_size <= 0 || format.group_size % 8 != 0) {
    throw Invalid("{}: group size {} of int4; want a multiple of 8", where, format.group_size);
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

void ReadQuantizeRules(const std::filesystem::path& file, QuantizeRules* rules) {
  const std::string name = file.string();
  const ConfigReader reader(ReadRegularFile(file, kMaxRulesBytes), name);
  RefuseOtherKeys(reader, {"rules"});
  for (const ConfigReader& rule : reader.Objects("rules")) {
    RefuseOtherKeys(rule, {"targets", "method", "group_size", "zero_points"});
    std::vector<ModulePattern> targets;
    for (const std::string& target : rule.Strings("targets")) {
      targets.push_back(ParsePattern(target));
    }
    if (targets.empty()) throw Invalid("{}: names no module", rule.Where("targets"));
    rules->rules.push_back({ReadScheme(rule), std::move(targets)});
  }
  if (rules->rules.empty()) throw Invalid("{}: is empty", reader.Where("rules"));
  if (rules->rules.size() > kMostRules) {
    throw Invalid("{}: has {} rules; at most {} are supported", reader.Where("rules"),
                  rules->rules.size(), kMostRules);
  }
}

QuantizationConfig ConfigOf(const QuantizeRules& rules) {
  QuantizationConfig config{.rules = rules.rules};
  if (!rules.format.name.empty()) {
    std::vector<ModulePattern> targets;
    // As `--quantization mxfp4`.
    if (rules.format.name == "mxfp4") targets = {{ModulePattern::Kind::kName, "experts"}};
    if (rules.format.name == "int4" || rules.format.name == "nvfp4") {
      SchemeRule plain;
      for (const std::string_view name : kLatentProjections) {
        plain.targets.push_back({ModulePattern::Kind::kName, std::string(name)});
      }
      config.rules.push_back(std::move(plain));  // rules of the user precede it
    }
    config.rules.push_back({SchemeOf(rules.format, "--format"), std::move(targets)});
  }
  for (const std::string_view name : kAlwaysPlain) {
    config.ignored.push_back({ModulePattern::Kind::kName, std::string(name)});
  }
  for (const std::string& text : rules.ignored) config.ignored.push_back(ParsePattern(text));
  try {
    const LinearSchemes checked(config);  // throws for malformed patterns
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("--ignore, --config: {}", e.what()));
  }
  return config;
}

}  // namespace switchyard
