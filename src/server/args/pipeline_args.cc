#include "server/args/pipeline_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/command_line.h"
#include "server/args/sglang_flags.h"

namespace switchyard {

void AddPipelineFlags(CommandLine& app, EngineConfig& e, const char* group) {
  app.Flag(
      "--pp-size,--pp,--pipeline-parallel-size", e.mesh.pp, group,
      "Pipeline stages of --tp-size ranks, each with a part of the layers; on CPUs of one host");
  app.Flag(
      "--pp-layer-partition", e.pp_layer_partition, group,
      "Numbers of layers of the pipeline stages, such as 12,12,13 (SGLANG_PP_LAYER_PARTITION). "
      "By default the layers are split so that the stages take about equal time");
  app.Flag(
         "--pp-max-micro-batch-size,--max-micro-batch-size", e.pp_max_micro_batch_size, group,
         "Maximum decoding requests in one pass through the pipeline, of all attention groups; 0: "
         "the decoding requests divided by the passes in flight")
      .NonNegative();
  app.Flag("--pp-async-batch-depth", e.pp_async_batch_depth, group,
           "Passes in flight in addition to one for each pipeline stage")
      .NonNegative();
}

bool HasMaxMicroBatchSize(std::span<const std::string> words) {
  return std::ranges::any_of(
      words, [](const std::string& word) { return word.starts_with("--max-micro-batch-size"); });
}

void SettleMaxMicroBatchSize(EngineConfig& e, TakenFlags* taken) {
  if (e.mesh.pp > 1) return;
  taken->without_effect.push_back(
      fmt::format("--max-micro-batch-size {} has no effect here without --pp-size",
                  std::exchange(e.pp_max_micro_batch_size, 0)));
}

}  // namespace switchyard
