// Expands abbreviated flags, and reports unknown flags.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

class CommandLine;

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

}  // namespace switchyard
