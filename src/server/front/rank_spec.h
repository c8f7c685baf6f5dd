// Input of a rank process: the engine's configuration and the plan that the parent made.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "comm/host/agreement.h"
#include "engine/config.h"

namespace switchyard {

// The plan travels, because it follows from the memory that was free when the parent looked; the
// model's configuration does not, because every rank reads the same config.json, but for what
// follows from the leader's CPU.
std::string EncodeRankSpec(const EngineConfig& config, const EnginePlan& plan);
struct RankJob {
  EngineConfig config;
  EnginePlan plan;
};
// `model_path`: where this node has the checkpoint; empty: where the spec says.
RankJob DecodeRankSpec(std::string_view bytes, const std::filesystem::path& model_path = {});

// What has to be the same on every node beside the spec, which node 0 makes: a difference means
// that the nodes were started for different things.
Statement EngineStatement(const EngineConfig& config);

}  // namespace switchyard
