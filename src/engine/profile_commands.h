// Starts and ends profiles on all ranks.
#pragma once

#include <vector>

#include "comm/device/communicator.h"
#include "engine/request.h"
#include "profile/profiler.h"

namespace switchyard {

// Applies StartProfile and StopProfile of `messages` between two steps. A profile starts on all
// ranks or on none. Returns the answers on rank 0, with the files of all ranks, and nothing on
// other ranks. Collective; every rank has the same messages. `profiler` is null on all ranks or on
// none; if it is null, the answers are refusals.
std::vector<EngineMessage> ApplyToProfiler(const std::vector<ControlMessage>& messages,
                                           profile::Profiler* profiler, RankComm& comm);

}  // namespace switchyard
