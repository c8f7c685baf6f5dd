// The flags of speculative decoding.
#pragma once

#include "core/command_line.h"
#include "engine/config.h"

namespace switchyard {

void AddSpeculativeFlags(CommandLine& app, EngineConfig& e);
// Refuses contradictory flags of speculative decoding, and the backends of a draft model without a
// draft model, before the checkpoint is read. Error kInvalid names the flag.
void CheckSpeculation(const EngineConfig& engine);

}  // namespace switchyard
