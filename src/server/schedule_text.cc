#include "server/schedule_text.h"

#include "schedule/print.h"

namespace switchyard {

std::string ServeScheduleText(const EngineConfig& config) {
  const ModelConfig model = ReadModelConfig(config);
  schedule::ServeShape shape{.range = {.end = static_cast<int>(model.num_layers())},
                             .micro_batches = config.two_batch_overlap ? 2 : 1,
                             // With waterfill the shared expert is one of the dispatched experts.
                             .shared_expert = model.has_moe() &&
                                              model.moe->shared_intermediate > 0 &&
                                              !config.moe.waterfill};
  for (const LayerConfig& layer : model.layers) shape.experts.push_back(layer.moe);
  shape.mode = schedule::Mode::kPrefill;
  std::string text = schedule::PrintSchedule(shape) + "\n";
  shape.mode = schedule::Mode::kDecode;
  return text + schedule::PrintSchedule(shape);
}

}  // namespace switchyard
