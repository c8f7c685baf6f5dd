#include "engine/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace switchyard {

namespace {

namespace fs = std::filesystem;

// The number in a file that contains only a number; nullopt for "max" or a missing file.
std::optional<int64_t> ReadNumber(const fs::path& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// The number after `key` in a file of "key value" lines.
int64_t ReadField(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return 0;
}

struct GroupFiles {
  const char *limit, *usage, *file_cache;  // names of two files, and of a field in memory.stat
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};

// The limits of a cgroup apply to all groups below it, so every directory from the process's own up
// to the mount is read. In a container, the root of the mount is often the container's group.
void ApplyGroups(const fs::path& mount, const std::string& group, const GroupFiles& files,
                 HostMemory& memory) {
  fs::path relative = fs::path(group).relative_path();
  while (true) {
    const fs::path dir = mount / relative;
    if (const auto limit = ReadNumber(dir / files.limit); limit && *limit < memory.total) {
      const int64_t used = ReadNumber(dir / files.usage).value_or(0) -
                           ReadField(dir / "memory.stat", files.file_cache);
      memory.total = *limit;
      memory.available = std::min(memory.available, std::max<int64_t>(0, *limit - used));
    }
    if (relative.empty()) return;
    relative = relative.parent_path();
  }
}

}  // namespace

HostMemory ReadHostMemory(const fs::path& root) {
  constexpr int64_t kKiB = 1024;
  HostMemory memory{
      .total = ReadField(root / "proc/meminfo", "MemTotal:") * kKiB,
      .available = ReadField(root / "proc/meminfo", "MemAvailable:") * kKiB,
  };
  if (memory.total == 0) memory.total = memory.available = std::numeric_limits<int64_t>::max();

  // Each line is "hierarchy:controllers:path"; the line of cgroup v2 is "0::path".
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      ApplyGroups(root / "sys/fs/cgroup", path, kVersion2, memory);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      ApplyGroups(root / "sys/fs/cgroup/memory", path, kVersion1, memory);
    }
  }
  return memory;
}

int64_t ResidentBytes(const fs::path& root) {
  std::ifstream in(root / "proc/self/statm");
  int64_t size = 0, resident = 0;  // pages
  return in >> size >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace switchyard
