#include "server/schedule_text.h"

#include <fmt/format.h>

#include "model/decoder.h"
#include "schedule/print.h"

namespace switchyard {

std::string ServeScheduleText(const EngineConfig& config) {
  MoeOptions moe = config.moe;
  moe.single_batch_overlap =
      moe.single_batch_overlap && CombinesInParts(moe, config.backends.get());
  const ModelConfig model = ReadModelConfig(config);
  schedule::ServeShape shape = ServeShapeOf(model, moe, config.two_batch_overlap);
  std::string text;
  for (const schedule::LayerRange& range : StagesOf(config, model)) {
    if (config.mesh.pp > 1)
      text += fmt::format("{}Layers {} to {}\n\n", text.empty() ? "" : "\n", range.begin,
                          range.end - 1);
    shape.range = range;
    shape.mode = schedule::Mode::kPrefill;
    text += schedule::PrintSchedule(shape) + "\n";
    shape.mode = schedule::Mode::kDecode;
    text += schedule::PrintSchedule(shape);
  }
  return text;
}

}  // namespace switchyard
