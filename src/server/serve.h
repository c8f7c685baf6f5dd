// `switchyard serve`, also without serving: the report of --dry-run and the text of
// --print-schedule.
#pragma once

#include <memory>
#include <string>

#include "engine/config.h"
#include "server/args/args.h"
#include "server/ranks/launch.h"

namespace switchyard {

// `switchyard serve` and `switchyard rank`.

// Runs the server until SIGTERM or SIGINT, drains it, and returns 0. For a signal before the server
// is ready, returns 128 + signal. If the ranks are lost, logs which rank ended and how, and returns
// 1. Throws Error for failures before the server is ready; no process is left running then. Blocks
// SIGTERM and SIGINT for the process, so call it from main before other threads exist. With
// --print-schedule or --dry-run, only prints the schedules or the layout and returns 0.
int RunServe(const ServerArgs& args);

// `switchyard rank`, in a process that RunServe started. `backends`: see EngineConfig.
int RunRank(int argc, char** argv, std::shared_ptr<const MoeBackends> backends = nullptr);

// `switchyard serve --dry-run`.

// What this node of `serve` would run, one property a line: model, layout, ranks, device, formats,
// memory and address. Ends with a newline. Makes the checks that `serve` makes before it starts
// ranks, and throws the same errors: flags, keys, the checkpoint's files, tokenizer, chat template,
// and the memory of this host.
//
// With --device cuda on a machine without GPUs, the layout is checked, but GPU memory is not.
std::string ServeLayoutText(const ServerArgs& args, const Launch& launch);

// Prints the schedules of a server.

// The operations of a prefill step and of a decode step with these flags (`--print-schedule`), in
// the order in which a rank runs them. With --enable-single-batch-overlap the down projection is
// separate if the exchange backend can return outputs in parts. Apart from that, the text has the
// same operations for every exchange backend, although the backend `none` sends no rows. With
// --enable-two-batch-overlap the schedules have two micro-batches. Reads only the model's
// config.json, and throws Error if it cannot be read.
std::string ServeScheduleText(const EngineConfig& config);

}  // namespace switchyard
