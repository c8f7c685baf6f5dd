// The schedules of a model's steps.
#include "core/check.h"
#include "model/decoder.h"
#include "schedule/verify.h"

namespace switchyard {

schedule::ServeShape ServeShapeOf(const ModelConfig& config, const MoeOptions& moe,
                                  bool two_batches) {
  schedule::ServeShape shape{
      .range = {.end = static_cast<int>(config.num_layers()),
                .has_embedding = config.has_embedding,
                .has_head = config.has_head},
      .micro_batches = two_batches ? 2 : 1,
      // With waterfill the shared expert is one of the dispatched experts. Layers with a shortcut
      // run their dense feed-forward in its place.
      .shared_expert = config.has_dense_beside() ||
                       (config.has_moe() && config.moe->shared_intermediate > 0 && !moe.waterfill),
      .down_under_combine = moe.single_batch_overlap};
  for (const LayerConfig& layer : config.layers) shape.experts.push_back(layer.moe);
  return shape;
}

std::vector<schedule::Operation> CheckedPlan(const schedule::ServeShape& shape) {
  std::vector<schedule::Operation> list = schedule::Plan(shape);
  CHECK_EQ(schedule::FindScheduleError(shape, list), "");
  return list;
}

std::vector<std::vector<schedule::Operation>> PlainSchedules(const ModelConfig& config,
                                                             const MoeOptions& moe) {
  std::vector<std::vector<schedule::Operation>> all;
  for (int depth = 0; depth < config.mtp_depths; ++depth) {
    schedule::ServeShape shape = ServeShapeOf(config, moe, /*two_batches=*/false);
    if (config.mtp_depths > 1) {
      shape.range.begin = depth;
      shape.range.end = depth + 1;
    }
    all.push_back(CheckedPlan(shape));
    // Layers of a schedule are counted from the first one of its range.
    for (schedule::Operation& operation : all.back())
      if (operation.layer != schedule::Operation::kNone) operation.layer += depth;
  }
  return all;
}

}  // namespace switchyard
