// Completion of flag prefixes and errors for unknown flags.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

class CommandLine;

// Returns the element of `known` with the smallest edit distance to `name`.
std::string NearestName(std::string_view name, std::span<const std::string_view> known);

// Replaces each word --name or --name=value by the full name if exactly one option of the app
// begins with it, as Python's argparse does. Error kInvalid lists the candidates if there are
// several.
void CompleteFlags(const CommandLine& app, std::vector<std::string>* words);

// Throws kInvalid with the nearest name for the first word of the form --name or --name=value that
// is no option of the app. `from_file`: the words that ExpandYamlConfig made from `file`.
void RefuseUnknownFlags(const CommandLine& app, const std::string& file,
                        const std::vector<std::string>& from_file,
                        const std::vector<std::string>& words);

}  // namespace switchyard
