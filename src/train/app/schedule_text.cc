#include "train/app/schedule_text.h"

#include "schedule/print.h"
#include "train/app/model_files.h"

namespace switchyard::train {

std::string ScheduleText(const TrainingOptions& options) {
  const TrainedConfig model = ReadTrainedConfig(options);
  const Layout layout = LayoutOf(options, model.config);
  const int64_t per_pass = options.trainer.rows_per_pass * layout.dp;
  schedule::StepShape shape{
      .micro_batches = static_cast<int>((options.trainer.rows_per_step + per_pass - 1) / per_pass),
      .order = options.learner.order,
      .stages = layout.pp,
      .early_sums = options.early_sums && layout.ranks() > 1};
  std::string text;
  for (shape.stage = 0; shape.stage < layout.pp; ++shape.stage) {
    const StageRange range =
        RankCoordinates(layout, shape.stage * layout.stage_ranks()).Stage(model.config);
    shape.first_layer = static_cast<int>(range.first_layer);
    shape.experts.clear();
    for (int64_t layer = range.first_layer; layer < range.last_layer; ++layer) {
      shape.experts.push_back(model.config.layers[static_cast<size_t>(layer)].moe);
    }
    if (shape.last())
      shape.experts.resize(shape.experts.size() + model.mtp_layers, model.config.has_moe());
    if (shape.stage > 0) text += "\n";
    text += schedule::PrintSchedule(shape);
  }
  return text;
}

}  // namespace switchyard::train
