#include "server/args/yaml_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "core/error.h"

namespace switchyard {
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
