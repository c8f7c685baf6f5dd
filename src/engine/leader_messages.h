// How the leader of the ranks receives messages before a step.
#pragma once

#include <chrono>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "engine/rank_engine.h"
#include "engine/request.h"

namespace switchyard {

// The messages that have arrived before the next step. If there is no work (`busy` is false), waits
// for a message. Otherwise waits for `delay` (EngineControls::step_delay_seconds), or until a
// message changes the controls. Adds heartbeats of the rank, and throws if the arena is aborted.
std::vector<ControlMessage> ReceiveMessages(bool busy, SymmetricMemory& memory,
                                            const RankLoopIo& io,
                                            std::chrono::duration<double> delay);

}  // namespace switchyard
