// The flags of pipeline stages.
#pragma once

#include "engine/config.h"

namespace switchyard {

// Error kInvalid names a flag of pipeline stages whose value is malformed, or that is given without
// several stages.
void CheckPipelineFlags(const EngineConfig& config);
// Error kInvalid names a flag that does not work with several stages.
void CheckPipeline(const EngineConfig& config);
// SGLANG_PP_LAYER_PARTITION, the default of --pp-layer-partition; empty: not set.
std::string LayerPartitionOfEnvironment();

}  // namespace switchyard
