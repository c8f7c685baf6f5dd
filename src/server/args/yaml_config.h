// `--config file.yaml` as flags.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

// The file that `args` name by --config; empty: none.
std::string ConfigPath(const std::vector<std::string>& args);

// Where `args` name a file by --config, its entries are put before them as flags: `tp-size: 2` (or
// tp_size) becomes
// --tp-size 2, `disable-radix-cache: true` the bare switch, a list one value after the other. Error
// kInvalid names file, line and key.
std::vector<std::string> ExpandYamlConfig(const std::vector<std::string>& args);

}  // namespace switchyard
