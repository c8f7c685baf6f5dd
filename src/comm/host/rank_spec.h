// How a parent hands a rank process its spec. Internal to comm/host.
#pragma once

#include <string>

#include "comm/host/rank_processes.h"

namespace switchyard {

// "SWITCHYARD_RANK_FDS=5,7": the inherited descriptors of the spec and of the arena.
inline constexpr const char* kRankFdsVariable = "SWITCHYARD_RANK_FDS";
std::string RankFdsEntry(int spec_fd, int arena_fd);

// An anonymous file (memfd, close-on-exec) with a rank's spec, but for the arena, and with the
// parent's pid. Nothing of it can be seen in the process list. Error kResource where there are no
// descriptors left.
int WriteRankSpec(const RankSpec& spec, int parent_pid);

}  // namespace switchyard
