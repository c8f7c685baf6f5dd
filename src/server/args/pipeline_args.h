// Flags of pipeline stages.
#pragma once

#include <span>
#include <string>

#include "engine/config.h"

namespace switchyard {

class CommandLine;
struct TakenFlags;

// `group`: the heading in the help.
void AddPipelineFlags(CommandLine& app, EngineConfig& e, const char* group);

// SGLang's older spelling of --pp-max-micro-batch-size, --max-micro-batch-size, is accepted without
// --pp-size. Whether `words` have it; after parsing, adds a line to `taken` if it has no effect.
bool HasMaxMicroBatchSize(std::span<const std::string> words);
void SettleMaxMicroBatchSize(EngineConfig& e, TakenFlags* taken);

}  // namespace switchyard
