// Converts `--config file.yaml` to flags.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// The file given by --config in `args`; empty if there is none.
std::string ConfigPath(const std::vector<std::string>& args);

// Converts the entries of the --config file to flags and puts them before `args`. `tp-size: 2` (or
// tp_size) becomes --tp-size 2, `disable-radix-cache: true` a switch, and a list several values.
// Error kInvalid names file, line and key.
std::vector<std::string> ExpandYamlConfig(const std::vector<std::string>& args);

}  // namespace switchyard
