// `switchyard serve` on nodes other than 0, which run ranks but no HTTP server.
#pragma once

#include "server/args/args.h"
#include "server/ranks/launch.h"
#include "server/service_manager.h"
#include "server/stop_signals.h"

namespace switchyard {

// Runs the node's ranks until node 0 ends the engine, and returns 0. Returns 128 + signal for a
// signal before all nodes have joined. If the engine is lost, logs the reason and returns 1. After
// all nodes have joined, ignores the first SIGTERM or SIGINT, since node 0 still needs these ranks
// for its requests. A second signal ends the node, and with it the engine. Throws Error for
// failures before the ranks run.
int RunFollower(const ServerArgs& args, const Launch& launch, const StopSignals& signals,
                ServiceManager& manager);

}  // namespace switchyard
