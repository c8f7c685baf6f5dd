// `switchyard serve` and `switchyard rank`.
#pragma once

#include <memory>

#include "server/args/args.h"

namespace switchyard {

// Runs the server until SIGTERM or SIGINT, drains it, and returns 0. For a signal before the server
// is ready, returns 128 + signal. If the ranks are lost, logs which rank ended and how, and returns
// 1. Throws Error for failures before the server is ready; no process is left running then. Blocks
// SIGTERM and SIGINT for the process, so call it from main before other threads exist. With
// --print-schedule or --dry-run, only prints the schedules or the layout and returns 0.
int RunServe(const ServerArgs& args);

// `switchyard rank`, in a process that RunServe started. `backends`: see EngineConfig.
int RunRank(int argc, char** argv, std::shared_ptr<const MoeBackends> backends = nullptr);

}  // namespace switchyard
