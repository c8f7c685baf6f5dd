// `switchyard serve`: from flags to a server that has drained.
#pragma once

#include <memory>

#include "server/args/args.h"

namespace switchyard {

// Runs until SIGTERM or SIGINT has drained it, and returns 0; a signal before it is ready returns
// 128 + signal. Returns 1, having said which rank ended how, when the ranks are lost. Throws Error
// for everything wrong before it is ready; nothing is left running then. Blocks SIGTERM and SIGINT
// for the process, so call it from main, before other threads exist.
int RunServe(const ServerArgs& args);

// `switchyard rank`, in a process that RunServe started. `backends`: as EngineConfig's.
int RunRank(int argc, char** argv, std::shared_ptr<const MoeBackends> backends = nullptr);

}  // namespace switchyard
