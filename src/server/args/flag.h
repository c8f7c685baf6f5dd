// How flags are added to a command.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace switchyard {

// Every flag may be given more than once, the last one counting: the command line overrides
// --config.
template <typename T>
CLI::Option* Flag(CLI::App& app, const char* names, T& value, const char* group,
                  const std::string& help) {
  return app.add_option(names, value, help)
      ->group(group)
      ->capture_default_str()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

inline CLI::Option* Switch(CLI::App& app, const char* names, bool& value, const char* group,
                           const std::string& help) {
  return app.add_flag(names, value, help)
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace switchyard
