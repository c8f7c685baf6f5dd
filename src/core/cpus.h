// Which CPUs there are for this process, how they lie, and who has taken them. A CPU is what Linux
// numbers so: a core, or one of its hardware threads.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Numbers of CPUs. Ascending where nothing else is said.
using CpuList = std::vector<int>;

// Those that the calling thread may run on: the machine's, or fewer by a cpuset, taskset, or what
// mpirun and srun bind a rank to.
CpuList AllowedCpus();
// How many these are, at least 1. (std::thread::hardware_concurrency counts the machine's.)
int AllowedCpuCount();

// "0-3,8": Error kInvalid begins with `where` and says what is wrong.
CpuList ParseCpuList(std::string_view where, std::string_view text);
std::string FormatCpuList(CpuList cpus);

// The part of rank `index` of `count` ranks that share `cpus`: neighbours, by whole cores where
// there are as many, so that a part lies on one memory node wherever sizes allow it. In the order
// in which threads take them: cores before second hardware threads of cores. Empty where ranks
// outnumber CPUs. `root`: where to find /sys (a test gives another); without it neighbours are
// neighbouring numbers.
CpuList ShareOfCpus(const CpuList& cpus, int index, int count,
                    const std::filesystem::path& root = "/");

// Lets the calling thread, and what it starts from now on, run on these alone. False where the
// system refuses.
bool RunOn(std::span<const int> cpus);

// CPUs that this object has taken, so that no other server of the host pins threads there: locks on
// directories of /sys, which leave no file behind and go with the process, however it ends.
// Containers with a network of their own have a /sys of their own and do not see each other's.
class TakenCpus {
 public:
  // The first `count` of `cpus` that nobody has; nothing where there are fewer.
  static std::optional<TakenCpus> Take(int count, const CpuList& cpus,
                                       const std::filesystem::path& root = "/");
  ~TakenCpus();
  TakenCpus(TakenCpus&& other) noexcept;
  TakenCpus& operator=(TakenCpus&& other) noexcept;

  const CpuList& cpus() const { return cpus_; }  // in the order given

 private:
  TakenCpus() = default;
  CpuList cpus_;
  std::vector<int> fds_;
};

}  // namespace switchyard
