// The command line of `switchyard eplb`.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace switchyard {

// What `eplb plan` and `eplb simulate` take; each has its own of these.
struct EplbArgs {
  std::string which;                     // plan or simulate
  std::string file;                      // COUNTS or TRACE: JSON or safetensors
  std::string tensor = "logical_count";  // --tensor
  int physical = 0;                      // --physical; 0: as many places as experts
  int ranks = 1, nodes = 1, groups = 1;  // --ranks, --nodes, --groups
  std::string algorithm = "auto";        // --algorithm
  std::string dispatch = "balanced";     // --dispatch
  double expert_mib = 42;                // --expert-mib: of DeepSeek-V3 in FP8
  std::string previous, output;          // plan: --previous, --output
  int window = 50, every = 50;           // simulate: --window, --every
  std::string svg;                       // simulate: --svg
};

// `which`: the word after `eplb`, which may be wrong, --help, or missing. Prints help and returns
// nothing where that was asked for; throws Error kInvalid, naming the flag, on anything wrong.
std::optional<EplbArgs> ParseEplb(const std::string& which, const std::vector<std::string>& args);

}  // namespace switchyard
