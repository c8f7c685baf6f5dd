// Starts this program again as a child process. Internal to comm/host.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/net/file_descriptor.h"

namespace switchyard {

// The environment as "NAME=value" entries.
std::vector<std::string> CopyEnvironment();

// Runs /proc/self/exe in a new process and returns its pid once it has been exec'ed. The child
// keeps stdout, stderr and the descriptors in `inherited`, under the same numbers, and reads stdin
// from /dev/null. It ignores SIGINT, SIGTERM and SIGHUP and blocks no signal. Error kResource if
// fork or exec fails. Any thread may call it.
pid_t SpawnSelf(const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment, const std::vector<int>& inherited);

}  // namespace switchyard
