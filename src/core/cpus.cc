#include "core/cpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxCpus = 8192;  // maximum NR_CPUS of Linux

struct CpuMask {
  cpu_set_t* bits = CPU_ALLOC(kMaxCpus);
  size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);

  CpuMask() { CPU_ZERO_S(bytes, bits); }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;
  ~CpuMask() { CPU_FREE(bits); }
};

fs::path CpuDirectory(const fs::path& root, int cpu) {
  return root / "sys/devices/system/cpu" / fmt::format("cpu{}", cpu);
}

int ReadNumber(const fs::path& path, int missing) {
  std::ifstream in(path);
  int value = missing;
  return in >> value ? value : missing;
}

// NUMA node of a CPU, from the link "node<N>" in its sysfs directory; 0 if there is none.
int NodeOf(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    int node = 0;
    if (name.starts_with("node") &&
        std::from_chars(name.data() + 4, name.data() + name.size(), node).ec == std::errc()) {
      return node;
    }
  }
  return 0;
}

// Groups CPUs by physical core. Cores are sorted by NUMA node, package and core id, so that
// adjacent cores share as much hardware as possible.
std::vector<CpuList> CoresOf(const CpuList& cpus, const fs::path& root) {
  std::map<std::tuple<int, int, int>, CpuList> cores;
  for (const int cpu : cpus) {
    const fs::path directory = CpuDirectory(root, cpu), topology = directory / "topology";
    cores[{NodeOf(directory), ReadNumber(topology / "physical_package_id", 0),
           ReadNumber(topology / "core_id", cpu)}]
        .push_back(cpu);
  }
  std::vector<CpuList> list;
  list.reserve(cores.size());
  for (auto& [place, core] : cores) list.push_back(std::move(core));
  return list;
}

// The first CPU of each core, then the second of each, and so on.
CpuList CoresFirst(std::span<const CpuList> cores) {
  CpuList order;
  for (size_t i = 0, found = 1; found > 0; ++i) {
    found = 0;
    for (const CpuList& core : cores) {
      if (i >= core.size()) continue;
      order.push_back(core[i]);
      ++found;
    }
  }
  return order;
}

}  // namespace

CpuList AllowedCpus() {
  const CpuMask mask;
  CpuList cpus;
  if (sched_getaffinity(0, mask.bytes, mask.bits) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, mask.bytes, mask.bits)) cpus.push_back(cpu);
  }
  return cpus;
}

int AllowedCpuCount() {
  const size_t count = AllowedCpus().size();
  return std::max(1, static_cast<int>(count ? count : std::thread::hardware_concurrency()));
}

CpuList ParseCpuList(std::string_view where, std::string_view text) {
  CpuList cpus;
  const char* next = text.data();
  const char* const end = text.data() + text.size();
  const auto number = [&] {
    int value = -1;
    const auto parsed = std::from_chars(next, end, value);
    if (parsed.ec != std::errc() || value < 0 || value >= kMaxCpus)
      throw Invalid("{}: '{}' is not a list of CPUs; want one like 0-3,8", where, text);
    next = parsed.ptr;
    return value;
  };
  for (bool more = true; more;) {
    const int first = number();
    int last = first;
    if (next != end && *next == '-') {
      ++next;
      last = number();
    }
    if (last < first)
      throw Invalid("{}: range {}-{} in '{}' is descending", where, first, last, text);
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    more = next != end && *next == ',';
    if (!more && next != end)
      throw Invalid("{}: '{}' is not a list of CPUs; want one like 0-3,8", where, text);
    ++next;
  }
  std::sort(cpus.begin(), cpus.end());
  if (const auto twice = std::adjacent_find(cpus.begin(), cpus.end()); twice != cpus.end())
    throw Invalid("{}: CPU {} appears twice in '{}'", where, *twice, text);
  return cpus;
}

std::string FormatCpuList(CpuList cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

CpuList PartitionCpus(const CpuList& cpus, int index, int count, const fs::path& root) {
  if (static_cast<size_t>(count) > cpus.size()) return {};
  std::vector<CpuList> cores = CoresOf(cpus, root);
  if (cores.size() < static_cast<size_t>(count)) {  // shares of hardware threads
    const std::vector<CpuList> whole = std::exchange(cores, {});
    for (const CpuList& core : whole) {
      for (const int cpu : core) cores.push_back({cpu});
    }
  }
  const size_t begin = cores.size() * index / count, end = cores.size() * (index + 1) / count;
  return CoresFirst(std::span(cores).subspan(begin, end - begin));
}

bool SetThreadAffinity(std::span<const int> cpus) {
  const CpuMask mask;
  for (const int cpu : cpus) CPU_SET_S(cpu, mask.bytes, mask.bits);
  return sched_setaffinity(0, mask.bytes, mask.bits) == 0;
}

std::optional<CpuReservation> CpuReservation::Take(int count, const CpuList& cpus,
                                                   const fs::path& root) {
  CpuReservation taken;
  for (const int cpu : cpus) {
    if (std::ssize(taken.cpus_) == count) break;
    const int fd = open(CpuDirectory(root, cpu).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      close(fd);
      continue;
    }
    taken.cpus_.push_back(cpu);
    taken.fds_.push_back(fd);
  }
  if (std::ssize(taken.cpus_) < count) return std::nullopt;
  return taken;
}

CpuReservation::~CpuReservation() {
  for (const int fd : fds_) close(fd);
}

CpuReservation::CpuReservation(CpuReservation&& other) noexcept
    : cpus_(std::move(other.cpus_)), fds_(std::exchange(other.fds_, {})) {}

CpuReservation& CpuReservation::operator=(CpuReservation&& other) noexcept {
  std::swap(cpus_, other.cpus_);
  std::swap(fds_, other.fds_);
  return *this;
}

}  // namespace switchyard
