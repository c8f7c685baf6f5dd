#include "train/device/learner.h"

#include "core/check.h"
#include "core/dtype.h"

namespace switchyard::train {

template <typename C>
DeviceLearner<C>::DeviceLearner(Model<float>& host, const LearnerOptions& options, TrainOps<C>& ops)
    : host_(host), options_(options), model_(host, ops) {
  CHECK(options.order == schedule::Order::kPlain);
}

template <typename C>
Losses DeviceLearner<C>::Learn(std::span<const Batch> batches, const StepSize& step) {
  for (const Batch& batch : batches) model_.Learn(batch, step);
  return model_.TakeLosses();
}

template <typename C>
std::map<std::string, double> DeviceLearner<C>::AfterStep(double rate_part) {
  const std::vector<std::vector<float>> loads = model_.TakeLoads();
  Balance balance;
  for (const std::vector<float>& layer : loads) balance.Add(layer);
  const Model<float>::ReplayCounts replay = model_.TakeReplay();
  balance.replayed = replay.replayed;
  balance.agreed = replay.agreed;
  const double step = options_.bias_step * (options_.bias_step_falls ? rate_part : 1.0);
  if (step > 0.0) {
    host_.MoveBiases(loads, step);
    model_.UploadBiases();
  }
  return balance.Figures();
}

template class DeviceLearner<float>;
template class DeviceLearner<BF16>;

}  // namespace switchyard::train
