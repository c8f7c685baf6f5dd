// Words that are no flag of a sub-command.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

class CommandLine;

// Of `known` the name that takes the fewest changes of letters to become `name`.
std::string NearestName(std::string_view name, std::span<const std::string_view> known);

// Writes out each word --name or --name=value whose name begins that of exactly one of the app's
// options (as Python's argparse does). Error kInvalid where several options begin so, with their
// names. Other words stay as they are.
void CompleteFlags(const CommandLine& app, std::vector<std::string>* words);

// Error kInvalid for the first word of `from_file` (what ExpandYamlConfig made of the file `file`)
// or of `words` that is written like a flag, --name or --name=value, and is none of the app's: it
// names the nearest one.
void RefuseUnknownFlags(const CommandLine& app, const std::string& file,
                        const std::vector<std::string>& from_file,
                        const std::vector<std::string>& words);

}  // namespace switchyard
