// How the leader of the ranks receives messages before a step.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "engine/rank_engine.h"
#include "engine/request.h"

namespace switchyard {

// The messages that have arrived before the next step. If there is no work (`busy` is false), waits
// for a message. Otherwise waits for `delay` (EngineControls::step_delay_seconds), or until a
// message changes the controls. Adds heartbeats of the rank, and throws if the arena is aborted.
// `others_busy`: whether other pipeline stages have work without messages. If they do, the wait
// ends after about 1 ms, possibly without a message. Null: they never do.
std::vector<ControlMessage> ReceiveMessages(bool busy, SymmetricMemory& memory,
                                            const RankLoopIo& io,
                                            std::chrono::duration<double> delay,
                                            const std::function<bool()>& others_busy = nullptr);

}  // namespace switchyard
