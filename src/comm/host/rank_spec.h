// Passes the spec from parent to rank process. Internal to comm/host.
#pragma once

#include <string>
#include <vector>

#include "comm/host/rank_processes.h"

namespace switchyard {

// "SWITCHYARD_RANK_FDS=5,7,8": the inherited descriptors of the spec, of the arena and, with
// several nodes, of the socket that listens for ranks of other nodes.
inline constexpr const char* kRankFdsVariable = "SWITCHYARD_RANK_FDS";
std::string RankFdsEntry(const std::vector<int>& fds);

// Writes an anonymous file (memfd, close-on-exec) with a rank's spec, without arena and listener,
// and the parent's pid. So the process list does not show the spec. Error kResource if there are no
// descriptors left.
int WriteRankSpec(const RankSpec& spec, int parent_pid);

}  // namespace switchyard
