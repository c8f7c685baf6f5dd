// The sub-commands, for the help, for completion in shells, and for messages.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

struct CommandSummary {
  std::string name;  // one or two words, like "serve" or "bench serve"
  std::string summary;
};

// Text of `switchyard --help`.
std::string MainHelp();

// The sub-commands in the order of the help, without repetitions.
std::vector<CommandSummary> CommandSummaries();

}  // namespace switchyard
