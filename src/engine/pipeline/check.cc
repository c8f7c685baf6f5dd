#include "engine/pipeline/check.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "model/stages.h"

namespace switchyard {
namespace {

// The flag or variable that set the layers of the stages.
std::string PartitionName(const std::string& text) {
  return !text.empty() && text == LayerPartitionOfEnvironment()
             ? "SGLANG_PP_LAYER_PARTITION (or --pp-layer-partition)"
             : "--pp-layer-partition";
}

// "12,12,13"; empty: none.
std::vector<int> ParsePartition(const std::string& text) {
  std::vector<int> sizes;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view word = rest.substr(0, comma);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    int size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    if (error != std::errc() || end != word.data() + word.size() || comma + 1 == rest.size())
      throw Invalid("{} {}: want numbers of layers, such as 12,12,13", PartitionName(text), text);
    sizes.push_back(size);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return sizes;
}

}  // namespace

void CheckPipelineFlags(const EngineConfig& config) {
  constexpr int32_t kMostAhead = 16;
  if (config.pp_async_batch_depth < 0 || config.pp_async_batch_depth > kMostAhead)
    throw Invalid("--pp-async-batch-depth {}: want 0 to {}", config.pp_async_batch_depth,
                  kMostAhead);
  if (config.pp_max_micro_batch_size < 0)
    throw Invalid("--pp-max-micro-batch-size {}: want at least 1, or 0 for an equal part",
                  config.pp_max_micro_batch_size);
  if (config.mesh.pp > 1 && config.pp_max_micro_batch_size > 0 &&
      config.pp_max_micro_batch_size < config.mesh.dp)
    throw Invalid(
        "--pp-max-micro-batch-size {}: want at least 1 for each attention group "
        "(--dp-size {})",
        config.pp_max_micro_batch_size, config.mesh.dp);
  if (config.mesh.pp == 1 && config.pp_async_batch_depth != 0)
    throw Invalid("--pp-async-batch-depth {} has no effect without --pp-size",
                  config.pp_async_batch_depth);
  if (config.mesh.pp == 1 && config.pp_max_micro_batch_size != 0)
    throw Invalid("--pp-max-micro-batch-size {} has no effect without --pp-size",
                  config.pp_max_micro_batch_size);
  const std::vector<int> sizes = ParsePartition(config.pp_layer_partition);
  if (config.mesh.pp == 1 && sizes.size() > 1)
    throw Invalid("--pp-layer-partition {} has no effect without --pp-size {}",
                  config.pp_layer_partition, sizes.size());
}

void CheckPipeline(const EngineConfig& config) {
  if (config.mesh.pp == 1) return;
  const auto refuse = [&](bool given, std::string_view flag) {
    if (given) throw Invalid("{}: not supported with --pp-size {}", flag, config.mesh.pp);
  };
  refuse(!config.speculative.algorithm.empty(),
         fmt::format("--speculative-algorithm {}", config.speculative.algorithm));
  refuse(config.target_step_ms > 0, fmt::format("--target-step-ms {}", config.target_step_ms));
  refuse(config.two_batch_overlap, "--enable-two-batch-overlap");
  refuse(config.eplb.enable, "--enable-eplb");
  refuse(config.eplb.dispatch != "static",
         fmt::format("--ep-dispatch-algorithm {}", config.eplb.dispatch));
  refuse(config.moe.init_expert_location != "trivial", "--init-expert-location");
  refuse(!config.recorder.mode.empty(), "--expert-distribution-recorder-mode");
  refuse(config.recorder.metrics, "--enable-expert-distribution-metrics");
}

std::string LayerPartitionOfEnvironment() {
  const char* sizes = std::getenv("SGLANG_PP_LAYER_PARTITION");
  return sizes == nullptr ? "" : sizes;
}

std::vector<schedule::LayerRange> StagesOf(const EngineConfig& config, const ModelConfig& model) {
  return SplitLayers(model, config.mesh.pp, ParsePartition(config.pp_layer_partition),
                     PartitionName(config.pp_layer_partition));
}

EnginePlan StagePlanOf(const EngineConfig& config, const EnginePlan& plan, int stage) {
  if (config.mesh.pp == 1) return plan;
  EnginePlan own = plan;
  own.model = StageConfigOf(plan.model, plan.stages[stage]);
  const size_t token = KvStorage::BytesPerToken(own.model, Mesh(config.mesh, 0), plan.kv_dtype);
  own.kv_bytes_per_rank = static_cast<size_t>(plan.num_pages * config.page_size) * token;
  return own;
}

}  // namespace switchyard
