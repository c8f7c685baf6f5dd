// How much memory this process may use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace switchyard {

// Bytes. `total` is the host's, or the tightest limit of the control groups around this process;
// `available` is what can be taken now, with caches of files counted as available.
struct HostMemory {
  int64_t total = 0;
  int64_t available = 0;
};

// Reads /proc/meminfo, and memory limits of cgroup v2 or v1, below `root` (a test gives another).
// Files that are missing mean no limit.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

}  // namespace switchyard
