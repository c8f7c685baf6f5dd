#include "server/schedule_text.h"

#include "model/decoder.h"
#include "schedule/print.h"

namespace switchyard {

std::string ServeScheduleText(const EngineConfig& config) {
  MoeOptions moe = config.moe;
  moe.single_batch_overlap =
      moe.single_batch_overlap && CombinesInParts(moe, config.backends.get());
  schedule::ServeShape shape = ServeShapeOf(ReadModelConfig(config), moe, config.two_batch_overlap);
  shape.mode = schedule::Mode::kPrefill;
  std::string text = schedule::PrintSchedule(shape) + "\n";
  shape.mode = schedule::Mode::kDecode;
  return text + schedule::PrintSchedule(shape);
}

}  // namespace switchyard
