#include <fnmatch.h>

#include <algorithm>
#include <regex>

#include "core/error.h"
#include "model/config_quantization.h"

namespace switchyard {
namespace {

// Whether `part` is a run of complete parts of `name`: "mlp.gate" of "model.layers.0.mlp.gate".
bool HasParts(std::string_view name, std::string_view part) {
  if (part.empty()) return false;
  for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

bool GlobFits(const std::string& pattern, std::string_view name) {
  for (std::string around(name); !around.empty();) {
    if (fnmatch(pattern.c_str(), around.c_str(), 0) == 0) return true;
    const size_t dot = around.rfind('.');
    around.resize(dot == std::string::npos ? 0 : dot);
  }
  return false;
}

// "mlp.experts.3.up_proj" becomes "mlp.experts.up_proj".
std::string WithoutExpert(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  std::string out(name);
  const size_t at = out.find(kExperts);
  if (at == std::string::npos) return out;
  const size_t number = at + kExperts.size(), end = out.find('.', number);
  const bool digits = end != std::string::npos && end > number &&
                      std::all_of(out.begin() + number, out.begin() + end,
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (digits) out.erase(number, end + 1 - number);
  return out;
}

class Matcher {
 public:
  explicit Matcher(const std::vector<ModulePattern>& patterns) : patterns_(patterns) {
    for (const ModulePattern& p : patterns_) {
      regexes_.emplace_back();
      if (p.kind != ModulePattern::Kind::kRegex) continue;
      try {
        regexes_.back().assign(p.text);
      } catch (const std::regex_error& e) {
        throw Invalid("\"{}\" is not a regular expression: {}", p.text, e.what());
      }
    }
  }

  bool AnyFits(std::string_view name) const {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (Fits(i, name)) return true;
    }
    return false;
  }

 private:
  bool Fits(size_t i, std::string_view name) const {
    switch (patterns_[i].kind) {
      case ModulePattern::Kind::kName:
        return HasParts(name, patterns_[i].text);
      case ModulePattern::Kind::kGlob:
        return GlobFits(patterns_[i].text, name);
      case ModulePattern::Kind::kRegex:
        return std::regex_search(name.begin(), name.end(), regexes_[i],
                                 std::regex_constants::match_continuous);
    }
    return false;
  }

  std::vector<ModulePattern> patterns_;
  std::vector<std::regex> regexes_;  // empty for other kinds
};

}  // namespace

struct LinearSchemes::Table {
  LinearScheme plain;
  struct Rule {
    LinearScheme scheme;
    bool every = false;
    Matcher targets;
  };
  Matcher ignored;
  std::vector<Rule> chosen, rules;
  LinearScheme plain_vocabulary;
  std::map<std::string, LinearScheme, std::less<>> stored;

  // The stored scheme of a linear, or null.
  const LinearScheme* Stored(std::string_view module) const {
    const auto found = stored.empty() ? stored.end() : stored.find(WithoutExpert(module));
    return found == stored.end() ? nullptr : &found->second;
  }

  // The first rule that applies, or null.
  static const Rule* Find(const std::vector<Rule>& list, std::string_view module) {
    const auto rule = std::ranges::find_if(
        list, [&](const Rule& r) { return r.every || r.targets.AnyFits(module); });
    return rule == list.end() ? nullptr : &*rule;
  }
  const LinearScheme& Chosen(const Rule& rule) const {
    return rule.scheme.packing == Packing::kPlain ? plain : rule.scheme;
  }
};

LinearSchemes::LinearSchemes(const QuantizationConfig& config) {
  auto table =
      std::make_unique<Table>(Table{{}, Matcher(config.ignored), {}, {}, {}, config.stored});
  if (config.bfloat16_rows) table->plain.activation = ActivationFormat::kBFloat16;
  const auto add = [](const std::vector<SchemeRule>& from, std::vector<Table::Rule>& to) {
    for (const SchemeRule& rule : from)
      to.push_back({rule.scheme, rule.targets.empty(), Matcher(rule.targets)});
  };
  add(config.chosen, table->chosen);
  add(config.rules, table->rules);
  table_ = std::move(table);
}

LinearSchemes::~LinearSchemes() = default;

const LinearScheme& LinearSchemes::Of(std::string_view module) const {
  if (const auto* rule = Table::Find(table_->chosen, module)) return table_->Chosen(*rule);
  if (const LinearScheme* stored = table_->Stored(module)) return *stored;
  if (table_->ignored.AnyFits(module)) return table_->plain;
  const auto* rule = Table::Find(table_->rules, module);
  return rule == nullptr ? table_->plain : rule->scheme;
}

const LinearScheme& LinearSchemes::OfVocabulary(std::string_view module) const {
  const auto* rule = Table::Find(table_->chosen, module);
  if (rule == nullptr) {
    const LinearScheme* stored = table_->Stored(module);
    return stored != nullptr ? *stored : table_->plain_vocabulary;
  }
  const bool packs = rule->scheme.packing != Packing::kPlain;
  return packs ? rule->scheme : table_->plain_vocabulary;
}

}  // namespace switchyard
