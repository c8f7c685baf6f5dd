#include "server/args/parse_words.h"

#include <utility>

#include "core/command_line.h"
#include "server/args/known_flags.h"

namespace switchyard {

bool ParseWords(CommandLine& app, std::vector<std::string> words) {
  CompleteFlags(app, &words);
  RefuseUnknownFlags(app, {}, {}, words);
  return app.Parse(std::move(words));
}

}  // namespace switchyard
