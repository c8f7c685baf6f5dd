// `switchyard serve` on a node other than 0: ranks, and no front.
#pragma once

#include "server/args/args.h"
#include "server/ranks/launch.h"
#include "server/stop_signals.h"

namespace switchyard {

// Runs the node's ranks until node 0 ends the engine, and returns 0; returns 1, having said why,
// when the engine is lost. SIGTERM and SIGINT are node 0's business, whose requests need these
// ranks; a second signal ends the node, and with it the engine. Throws Error for everything wrong
// before the ranks run.
int RunFollower(const ServerArgs& args, const Launch& launch, const StopSignals& signals);

}  // namespace switchyard
