// The command line of `switchyard quantize`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

struct QuantizeArgs {
  std::filesystem::path from, to;   // arguments DIR and OUT
  std::string format;               // --format; empty: as in --config
  int64_t group_size = 32;          // --group-size of int4
  bool zero_points = false;         // --zero-points of int4
  std::vector<std::string> ignore;  // --ignore
  std::string config;               // --config FILE; empty: none
  double shard_gb = 5;              // --max-shard-size, in 10^9 bytes
  int threads = 0;                  // --threads; 0: all CPUs that the process may use
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<QuantizeArgs> ParseQuantize(const std::vector<std::string>& args);

}  // namespace switchyard
