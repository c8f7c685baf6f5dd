// Flags of pipeline stages.
#pragma once

#include "engine/config.h"

namespace switchyard {

class CommandLine;

// `group`: the heading in the help.
void AddPipelineFlags(CommandLine& app, EngineConfig& e, const char* group);

}  // namespace switchyard
