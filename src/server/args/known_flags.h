// Words that are no flag of a sub-command.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace switchyard {

// Error kInvalid for the first word of `from_file` (what ExpandYamlConfig made of the file `file`)
// or of `words` that is written like a flag, --name or --name=value, and is none of the app's: it
// names the nearest one.
void RefuseUnknownFlags(const CLI::App& app, const std::string& file,
                        const std::vector<std::string>& from_file,
                        const std::vector<std::string>& words);

}  // namespace switchyard
