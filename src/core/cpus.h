// CPU affinity: CPUs allowed to this process, their partition over ranks, and reservation across
// processes of a host. A CPU is a Linux CPU number: a core, or one of its hardware threads.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// CPU numbers, ascending unless stated otherwise.
using CpuList = std::vector<int>;

// Affinity mask of the calling thread: all CPUs of the machine, or fewer under a cpuset, taskset,
// or the binding of mpirun or srun.
CpuList AllowedCpus();
// Size of AllowedCpus(), at least 1. (std::thread::hardware_concurrency counts the machine's CPUs.)
int AllowedCpuCount();

// Parses "0-3,8". The message of Error kInvalid starts with `where`.
CpuList ParseCpuList(std::string_view where, std::string_view text);
std::string FormatCpuList(CpuList cpus);

// CPUs of rank `index` out of `count` ranks that share `cpus`. Each share is a run of neighbouring
// CPUs, so that it stays on one NUMA node where sizes allow. It consists of whole cores if there
// are at least `count` cores. The order is the pinning order of threads: first hardware threads of
// all cores before second ones. Empty if there are fewer CPUs than ranks. `root`: parent directory
// of /sys (tests replace it). Without /sys, CPUs with consecutive numbers are neighbours.
CpuList PartitionCpus(const CpuList& cpus, int index, int count,
                      const std::filesystem::path& root = "/");

// Sets the affinity mask of the calling thread, which new threads inherit. False if the system
// refuses.
bool SetThreadAffinity(std::span<const int> cpus);

// Reserves CPUs, so that no other server on the host pins threads to them. A reservation is a set
// of locks on directories of /sys: it leaves no files behind. The kernel releases it when the
// process ends for any reason. A container with its own network namespace has its own /sys, so its
// locks do not affect other containers.
class CpuReservation {
 public:
  // The first `count` of `cpus` that are not reserved; nullopt if there are fewer.
  static std::optional<CpuReservation> Take(int count, const CpuList& cpus,
                                            const std::filesystem::path& root = "/");
  ~CpuReservation();
  CpuReservation(CpuReservation&& other) noexcept;
  CpuReservation& operator=(CpuReservation&& other) noexcept;

  const CpuList& cpus() const { return cpus_; }  // the reserved CPUs, in the order of Take's `cpus`

 private:
  CpuReservation() = default;
  CpuList cpus_;
  std::vector<int> fds_;
};

}  // namespace switchyard
