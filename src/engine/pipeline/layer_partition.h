// The flag --pp-layer-partition. This file also has the definitions of StagesOf and StagePlanOf
// (engine/config.h).
#pragma once

#include <string>
#include <vector>

#include "engine/config.h"

namespace switchyard {

// The numbers of layers in "12,12,13"; none for an empty text. Error kInvalid names the flag, or
// the environment variable if it has the same text.
std::vector<int> ParseLayerPartition(const std::string& text);
// SGLANG_PP_LAYER_PARTITION, the default of --pp-layer-partition; empty: not set.
std::string LayerPartitionOfEnvironment();

}  // namespace switchyard
