// What every sub-command does with its words.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

class CommandLine;

// Gives `words` to the app. False where help was asked for, and printed; Error kInvalid, which
// names the flag and the app's --help, on anything wrong.
bool ParseWords(CommandLine& app, std::vector<std::string> words);

}  // namespace switchyard
