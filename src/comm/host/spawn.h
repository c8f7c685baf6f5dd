// Start of a rank process: its input, its environment, and its state.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/host/rank_processes.h"
#include "comm/net/file_descriptor.h"

namespace switchyard {

// Starts this program again as a child process. Internal to comm/host.

// The environment as "NAME=value" entries.
std::vector<std::string> CopyEnvironment();

// Runs /proc/self/exe in a new process and returns its pid once it has been exec'ed. The child
// keeps stdout, stderr and the descriptors in `inherited`, under the same numbers, and reads stdin
// from /dev/null. It ignores SIGINT, SIGTERM and SIGHUP and blocks no signal. Error kResource if
// fork or exec fails. Any thread may call it.
pid_t SpawnSelf(const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment, const std::vector<int>& inherited);

// The state of another process, read from the kernel.

// Whether the process is stopped by a signal. A process that a debugger has stopped is not.
bool IsStopped(pid_t pid);

// Whether this child process has ended. It is not reaped.
bool HasEnded(pid_t pid);

// CPU time of all threads of the process, in seconds; 0 if it has ended.
double CpuSeconds(pid_t pid);

// Passes the spec from parent to rank process. Internal to comm/host.

// "SWITCHYARD_RANK_FDS=5,7,8": the inherited descriptors of the spec, of the arena, with several
// nodes of the socket that listens for ranks of other nodes, and of the rank's KeptDescriptors.
inline constexpr const char* kRankFdsVariable = "SWITCHYARD_RANK_FDS";
std::string RankFdsEntry(const std::vector<int>& fds);

// Writes an anonymous file (memfd, close-on-exec) with a rank's spec, without arena and listener,
// and the parent's pid. So the process list does not show the spec. Error kResource if there are no
// descriptors left.
int WriteRankSpec(const RankSpec& spec, int parent_pid);

}  // namespace switchyard
