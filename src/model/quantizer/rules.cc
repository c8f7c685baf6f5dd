#include "model/quantizer/rules.h"

#include <string>
#include <utility>

#include "core/error.h"
#include "core/regular_file.h"
#include "model/config_reader.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxRulesBytes = 1 << 20;
constexpr size_t kMostRules = 9;  // config_groups are sorted by name, group_0 … group_9

}  // namespace

void ReadQuantizeRules(const std::filesystem::path& file, QuantizeRules* rules) {
  const ConfigReader reader(ReadRegularFile(file, kMaxRulesBytes), file.string());
  for (SchemeRule& rule : ReadSchemeRules(reader, kFileGroupUnit))
    rules->rules.push_back(std::move(rule));
  if (rules->rules.size() > kMostRules) {
    throw Invalid("{}: has {} rules; at most {} are supported", reader.Where("rules"),
                  rules->rules.size(), kMostRules);
  }
}

QuantizationConfig ConfigOf(const QuantizeRules& rules) {
  QuantizationConfig config{.rules = rules.rules};
  if (!rules.format.name.empty()) {
    std::vector<ModulePattern> targets;
    // mxfp4 packs routed experts only, as `--quantization mxfp4` does.
    if (rules.format.name == "mxfp4") targets = {{ModulePattern::Kind::kName, "experts"}};
    if (rules.format.name == "int4" || rules.format.name == "nvfp4") {
      SchemeRule plain;
      for (const std::string_view name : kLatentProjections) {
        plain.targets.push_back({ModulePattern::Kind::kName, std::string(name)});
      }
      config.rules.push_back(std::move(plain));  // rules of the user precede it
    }
    config.rules.push_back(
        {SchemeOf(rules.format, kFileGroupUnit, "--format"), std::move(targets)});
  }
  for (const std::string_view name : kPlainProjections) {
    config.ignored.push_back({ModulePattern::Kind::kName, std::string(name)});
  }
  config.ignored.push_back({ModulePattern::Kind::kName, std::string(kPlainMtpProjection)});
  for (const std::string& text : rules.ignored) config.ignored.push_back(ParsePattern(text));
  try {
    const LinearSchemes checked(config);  // throws for malformed patterns
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("--ignore, --config: {}", e.what()));
  }
  return config;
}

}  // namespace switchyard
