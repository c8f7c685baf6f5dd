#include "server/args/parse_words.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/error.h"
#include "server/args/known_flags.h"

namespace switchyard {

bool ParseWords(CLI::App& app, std::vector<std::string> words) {
  CompleteFlags(app, &words);
  RefuseUnknownFlags(app, {}, {}, words);
  std::reverse(words.begin(), words.end());  // CLI11 takes a stack
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& e) {
    throw Invalid("{}; see {} --help", e.what(), app.get_name());
  }
  return true;
}

}  // namespace switchyard
