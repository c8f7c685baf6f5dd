// Parses the command line of a sub-command.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

class CommandLine;

// Parses `words` with `app`. Returns false after printing the help for --help. Throws kInvalid that
// names the flag and the app's --help.
bool ParseWords(CommandLine& app, std::vector<std::string> words);

}  // namespace switchyard
