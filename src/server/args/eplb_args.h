// The command line of `switchyard eplb`.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// Arguments of `eplb plan` and `eplb simulate`. Each command uses some of them.
struct EplbArgs {
  std::string which;  // plan or simulate
  std::string file;   // argument COUNTS or TRACE: a JSON, safetensors or PyTorch file
  std::string tensor = "logical_count";  // --tensor
  int physical = 0;                      // --physical: expert slots; 0: the number of experts
  int ranks = 1, nodes = 1, groups = 1;  // --ranks, --nodes, --groups
  std::string algorithm = "auto";        // --algorithm
  std::string dispatch = "balanced";     // --dispatch
  double expert_mib = 42;                // --expert-mib; default: an expert of DeepSeek-V3 in FP8
  std::string previous, output;          // plan: --previous, --output
  int window = 50, every = 50;           // simulate: --window, --every
  std::string svg;                       // simulate: --svg
};

// `which`: the word after `eplb`, which may be invalid, --help, or empty. For --help, prints the
// help and returns nothing. Throws Error kInvalid that names the invalid flag.
std::optional<EplbArgs> ParseEplb(const std::string& which, const std::vector<std::string>& args);

}  // namespace switchyard
