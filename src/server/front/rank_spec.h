// What a rank process is told: the engine's configuration and the plan that the parent made.
#pragma once

#include <string>
#include <string_view>

#include "engine/config.h"

namespace switchyard {

// The plan travels, because it follows from the memory that was free when the parent looked; the
// model's configuration does not, because every rank reads the same config.json.
std::string EncodeRankSpec(const EngineConfig& config, const EnginePlan& plan);
struct RankJob {
  EngineConfig config;
  EnginePlan plan;
};
RankJob DecodeRankSpec(std::string_view bytes);

}  // namespace switchyard
