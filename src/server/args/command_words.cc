#include "server/args/command_words.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/command_line.h"
#include "core/error.h"

namespace switchyard {

bool ParseWords(CommandLine& app, std::vector<std::string> words) {
  CompleteFlags(app, &words);
  RefuseUnknownFlags(app, {}, {}, words);
  return app.Parse(std::move(words));
}

namespace {

// Levenshtein distance: insertions, deletions and substitutions.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = before + (a[i] == b[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Returns the name of the flag `word` without its dashes if `app` has no such flag; otherwise "".
std::string Unknown(const CommandLine& app, const std::string& word) {
  if (!word.starts_with("--") || word.size() == 2) return {};
  const std::string flag = word.substr(0, word.find('='));
  return app.Has(flag) ? std::string() : flag.substr(2);
}

std::string Nearest(const CommandLine& app, const std::string& name) {
  std::string best;
  size_t least = std::string::npos;
  for (const std::vector<std::string>& names : app.LongNames()) {
    for (const std::string& known : names) {
      const size_t distance = Distance(name, known);
      if (distance >= least) continue;
      least = distance;
      best = known;
    }
  }
  return best;
}

// Long names that begin with `name`. If several names of one option match, only the first is added.
std::vector<std::string> NamesThatBegin(const CommandLine& app, const std::string& name) {
  std::vector<std::string> found;
  for (const std::vector<std::string>& names : app.LongNames()) {
    const auto it = std::ranges::find_if(
        names, [&](const std::string& known) { return known.starts_with(name); });
    if (it != names.end()) found.push_back(*it);
  }
  return found;
}

}  // namespace

std::string NearestName(std::string_view name, std::span<const std::string_view> known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [name](std::string_view other) { return Distance(name, other); });
  return nearest == known.end() ? std::string() : std::string(*nearest);
}

void CompleteFlags(const CommandLine& app, std::vector<std::string>* words) {
  for (std::string& word : *words) {
    const std::string name = Unknown(app, word);
    if (name.empty()) continue;
    const std::vector<std::string> found = NamesThatBegin(app, name);
    if (found.size() > 1) {
      throw Invalid("--{} is ambiguous: --{}; write the full name", name, Joined(found, " or --"));
    }
    if (found.size() == 1) word.replace(2, name.size(), found.front());
  }
}

void RefuseUnknownFlags(const CommandLine& app, const std::string& file,
                        const std::vector<std::string>& from_file,
                        const std::vector<std::string>& words) {
  for (const std::string& word : from_file) {
    if (const std::string name = Unknown(app, word); !name.empty()) {
      throw Invalid("--config {}: there is no key {}; the nearest is {}", file, name,
                    Nearest(app, name));
    }
  }
  for (const std::string& word : words) {
    if (const std::string name = Unknown(app, word); !name.empty()) {
      throw Invalid("there is no flag --{}; the nearest is --{}; see {} --help", name,
                    Nearest(app, name), app.name());
    }
  }
}

namespace {

// Whether a YAML value is a boolean (true, yes, on …, but not y and n). A quoted "true" is a
// string.
bool IsSwitch(const YAML::Node& value, bool* on) {
  return value.IsScalar() && value.Tag() != "!" && YAML::convert<bool>::decode(value, *on) &&
         value.Scalar() != "y" && value.Scalar() != "n";
}

}  // namespace

std::string ConfigPath(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].starts_with("--config=")) return args[i].substr(9);
    if (args[i] == "--config" && i + 1 < args.size()) return args[i + 1];
  }
  return {};
}

std::vector<std::string> ExpandYamlConfig(const std::vector<std::string>& args) {
  const std::string path = ConfigPath(args);
  if (path.empty()) return args;
  YAML::Node root;
  try {
    root = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    throw NotFound("--config {}: cannot be read", path);
  } catch (const YAML::Exception& e) {
    throw Invalid("--config {}: {}", path, e.what());
  }
  if (root.IsNull()) return args;
  if (!root.IsMap()) throw Invalid("--config {}: want `flag: value` lines", path);

  std::vector<std::string> flags;
  for (const auto& entry : root) {
    const auto line = entry.first.Mark().line + 1;
    if (!entry.first.IsScalar()) throw Invalid("--config {}:{}: want a flag's name", path, line);
    std::string name = entry.first.Scalar();
    std::replace(name.begin(), name.end(), '_', '-');
    const YAML::Node& value = entry.second;
    bool on = false;
    if (IsSwitch(value, &on)) {
      if (on) flags.push_back("--" + name);
    } else if (value.IsScalar()) {
      flags.push_back("--" + name);
      flags.push_back(value.Scalar());
    } else if (value.IsSequence()) {
      flags.push_back("--" + name);
      for (const YAML::Node& item : value) {
        if (!item.IsScalar())
          throw Invalid("--config {}:{}: {} requires plain values", path, line, name);
        flags.push_back(item.Scalar());
      }
    } else if (!value.IsNull()) {
      throw Invalid("--config {}:{}: {} requires a value or a list", path, line, name);
    }
  }
  flags.insert(flags.end(), args.begin(), args.end());
  return flags;
}

}  // namespace switchyard
