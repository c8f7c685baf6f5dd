// Flags of elastic ranks: restarts of ranks that end.
#pragma once

#include "server/args/args.h"

namespace switchyard {

class CommandLine;

// `group`: the heading in the help.
void AddElasticFlags(CommandLine& app, ServerArgs& args, const char* group);

}  // namespace switchyard
