// The memory that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace switchyard {

// Bytes. `total` is the host's memory, or the tightest limit of the cgroups of this process.
// `available` is what can be allocated now; the page cache counts as available.
struct HostMemory {
  int64_t total = 0;
  int64_t available = 0;
};

// Reads /proc/meminfo, and memory limits of cgroup v2 or v1, below `root` (tests pass another).
// A missing file means no limit.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

// Bytes of this process that are in memory, shared pages included, from /proc/self/statm below
// `root`; 0 if it cannot be read.
int64_t ResidentBytes(const std::filesystem::path& root = "/");

}  // namespace switchyard
