// Flags about restarts of ranks.
#pragma once

#include "core/command_line.h"
#include "server/args/args.h"

namespace switchyard {

void AddElasticFlags(CommandLine& app, ServerArgs& args);

}  // namespace switchyard
