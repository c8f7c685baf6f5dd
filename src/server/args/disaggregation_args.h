// Flags of prefill and decode workers.
#pragma once

#include "core/command_line.h"
#include "server/args/args.h"

namespace switchyard {

void AddDisaggregationFlags(CommandLine& app, ServerArgs& args);
// Error kInvalid if a flag has no effect without --disaggregation-mode. After parsing.
void CheckDisaggregationFlags(const CommandLine& app, const ServerArgs& args);

}  // namespace switchyard
