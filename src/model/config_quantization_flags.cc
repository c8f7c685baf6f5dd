// Applies --quantization and --quantize-activations to a configuration.
#include <algorithm>

#include "core/error.h"
#include "model/config_quantization.h"

namespace switchyard {
namespace {

// Groups of 32 columns with zero points have an error as small as Q4_K's (quant/scale_search.h).
constexpr int64_t kInt4Group = 32;
constexpr int64_t kW4aFp8Group = 128;  // the group of published W4A-FP8 checkpoints

LinearScheme WhileLoading(WeightFormat format, ActivationFormat activation, int64_t group = 0,
                          bool zeros = false) {
  return {.packing = Packing::kWhileLoading,
          .format = format,
          .group_size = group,
          .zeros = zeros,
          .activation = activation};
}

// Rules of a --quantization method. Methods have SGLang's names if SGLang has them. Returns no
// rules for an unknown name.
std::vector<SchemeRule> RulesOf(const std::string& method) {
  using W = WeightFormat;
  using A = ActivationFormat;
  const std::vector<ModulePattern> experts{{ModulePattern::Kind::kName, "experts"}};
  const auto all = [](W weights, A inputs, int64_t group = 0, bool zeros = false) {
    return std::vector<SchemeRule>{{WhileLoading(weights, inputs, group, zeros), {}}};
  };
  if (method == "fp8") return all(W::kFp8Block, A::kFp8Group);
  if (method == "w8a8_fp8") return all(W::kFp8Channel, A::kFp8Token);
  if (method == "w8a8_int8") return all(W::kInt8Channel, A::kInt8Token);
  if (method == "int4") return all(W::kInt4Group, A::kNone, kInt4Group, true);
  if (method == "nvfp4" || method == "nvfp4_online") return all(W::kNvfp4, A::kNone);
  if (method == "mxfp4") return {{WhileLoading(W::kMxfp4, A::kNone), experts}};
  if (method == "w4afp8") {
    return {{WhileLoading(W::kInt4Group, A::kFp8Token, kW4aFp8Group), experts},
            {WhileLoading(W::kFp8Block, A::kFp8Group), {}}};
  }
  return {};
}

void ApplyMethod(const std::string& method, QuantizationConfig* config) {
  if (std::ranges::count(config->names, method)) return;
  if (!config->method.empty()) {
    throw Invalid(
        "--quantization {}: the checkpoint is quantized already, by {} (config.json); leave the "
        "flag out, or name a checkpoint that is not quantized",
        method, config->method);
  }
  config->rules = RulesOf(method);
  config->ignored.clear();
  for (const std::string_view name : kPlainProjections)
    config->ignored.push_back({ModulePattern::Kind::kName, std::string(name)});
  if (method == "int4" || method.starts_with("nvfp4")) {
    for (const std::string_view name : kLatentProjections) {
      config->ignored.push_back({ModulePattern::Kind::kName, std::string(name)});
    }
  }
  if (config->rules.empty()) {
    throw Invalid(
        "--quantization {} cannot be applied to a checkpoint that is not quantized; want "
        "fp8, w8a8_fp8, w8a8_int8, int4, w4afp8, mxfp4 or nvfp4",
        method);
  }
}

bool Computed(ActivationFormat activation, const std::string& choice) {
  return choice == "always" || (choice == "auto" && activation == ActivationFormat::kInt8Token);
}

}  // namespace

void ApplyFlags(const QuantizationFlags& flags, QuantizationConfig* config) {
  const std::string& choice = flags.activations;
  if (choice != "auto" && choice != "always" && choice != "never") {
    throw Invalid("--quantize-activations {}: want auto, always or never", choice);
  }
  if (flags.layout != "auto" && flags.layout != "panels" && flags.layout != "stored")
    throw Invalid("--cpu-weight-layout {}: want auto, panels or stored", flags.layout);
  config->stored_layout = flags.layout == "stored";
  config->bfloat16_rows = choice == "always";
  if (!flags.method.empty()) ApplyMethod(flags.method, config);
  if (!flags.rules.empty()) config->chosen = ReadQuantizationRules(flags.rules);
  for (std::vector<SchemeRule>* rules : {&config->chosen, &config->rules}) {
    for (SchemeRule& rule : *rules) {
      if (!Computed(rule.scheme.activation, choice))
        rule.scheme.activation = ActivationFormat::kNone;
    }
  }
}

}  // namespace switchyard
