// The words of a command line: abbreviated and unknown flags, and flags of a configuration file.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Parses the command line of a sub-command.

class CommandLine;

// Parses `words` with `app`. Returns false after printing the help for --help. Throws kInvalid that
// names the flag and the app's --help.
bool ParseWords(CommandLine& app, std::vector<std::string> words);

// Expands abbreviated flags, and reports unknown flags.

// Returns the element of `known` with the smallest edit distance to `name`.
std::string NearestName(std::string_view name, std::span<const std::string_view> known);

// Completes the name in each word --name or --name=value, if exactly one option of the app begins
// with that name, as Python's argparse does. If several options do, Error kInvalid lists them.
void CompleteFlags(const CommandLine& app, std::vector<std::string>* words);

// Throws kInvalid for the first word --name or --name=value whose name is not an option of `app`.
// The error suggests the option with the nearest name. `from_file`: the words that ExpandYamlConfig
// made from `file`.
void RefuseUnknownFlags(const CommandLine& app, const std::string& file,
                        const std::vector<std::string>& from_file,
                        const std::vector<std::string>& words);

// Converts `--config file.yaml` to flags.

// The file given by --config in `args`; empty if there is none.
std::string ConfigPath(const std::vector<std::string>& args);

// Converts the entries of the --config file to flags and puts them before `args`. `tp-size: 2` (or
// tp_size) becomes --tp-size 2, `disable-radix-cache: true` a switch, and a list several values.
// Error kInvalid names file, line and key.
std::vector<std::string> ExpandYamlConfig(const std::vector<std::string>& args);

}  // namespace switchyard
