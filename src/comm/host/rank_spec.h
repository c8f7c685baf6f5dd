// How a parent hands a rank process its spec. Internal to comm/host.
#pragma once

#include <string>
#include <vector>

#include "comm/host/rank_processes.h"

namespace switchyard {

// "SWITCHYARD_RANK_FDS=5,7,8": the inherited descriptors of the spec, of the arena and, where there
// are other nodes, of the socket that listens to their ranks.
inline constexpr const char* kRankFdsVariable = "SWITCHYARD_RANK_FDS";
std::string RankFdsEntry(const std::vector<int>& fds);

// An anonymous file (memfd, close-on-exec) with a rank's spec, but for arena and listener, and with
// the parent's pid. Nothing of it can be seen in the process list. Error kResource where there are
// no descriptors left.
int WriteRankSpec(const RankSpec& spec, int parent_pid);

}  // namespace switchyard
