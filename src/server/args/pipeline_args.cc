#include "server/args/pipeline_args.h"

#include "core/command_line.h"

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

}  // namespace switchyard
