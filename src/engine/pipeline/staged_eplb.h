// Expert load balancing (EPLB) with pipeline stages.
#pragma once

#include <vector>

#include "comm/device/communicator.h"
#include "engine/request.h"
#include "eplb/manager.h"

namespace switchyard {

// Applies the messages for EPLB to all stages. Each stage plans and moves its own layers, but a
// requested rebalance starts on all stages or on none. Returns the answers on rank 0, with the
// layers of all stages (MergedStatus), and nothing on other ranks. For each message a collective of
// the ranks with the same place in all stages, so the results of all passes in flight must have
// been received before. `eplb`: of this stage; null if the stage has no experts. `layers`: number
// of layers of this stage.
std::vector<EngineMessage> ApplyToStagedEplb(const std::vector<ControlMessage>& messages,
                                             EplbManager* eplb, int layers, RankComm& comm);

}  // namespace switchyard
