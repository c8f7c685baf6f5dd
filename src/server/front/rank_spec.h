// Serialized input of a rank process: the engine configuration and the parent's engine plan.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "comm/host/agreement.h"
#include "engine/config.h"

namespace switchyard {

// The plan is serialized because it depends on the memory that was free when the parent measured
// it. The model configuration is not serialized, since every rank reads the same config.json. The
// exceptions are bfloat16_rows, int8_group_rows and fp8_bfloat16_rows, which depend on the leader's
// CPU.
std::string EncodeRankSpec(const EngineConfig& config, const EnginePlan& plan);
struct RankJob {
  EngineConfig config;
  EnginePlan plan;
};
// `model_path` and `draft_path`: the checkpoint directories of the model and of the draft model on
// this node. Those that are empty are taken from `bytes`. `token_map`: --speculative-token-map of
// this node; nullopt: taken from `bytes`; empty: the job has the draft model's complete head, which
// does not change its caches. Error kInvalid if the file has other tokens than the parent has read.
RankJob DecodeRankSpec(std::string_view bytes, const std::filesystem::path& model_path = {},
                       const std::filesystem::path& draft_path = {},
                       const std::optional<std::string>& token_map = std::nullopt);

// Flags and file hashes that must be equal on all nodes. Node 0 sends its spec to the other nodes,
// so only values outside the spec need this check. If they differ, the nodes were started with
// different arguments or checkpoints.
Statement EngineStatement(const EngineConfig& config);

}  // namespace switchyard
