#include "train/device/learner.h"

#include <iterator>

#include "core/check.h"
#include "core/dtype.h"

namespace switchyard::train {

template <typename C>
DeviceLearner<C>::DeviceLearner(Model<float>& host, const LearnerOptions& options, TrainOps<C>& ops,
                                DeviceRanks& ranks, const DeviceOptions& device)
    : host_(host),
      options_(options),
      ranks_(ranks),
      model_(host, ops, ranks, device),
      timer_(options.profiler, ops.device()) {
  CHECK(options.order == schedule::Order::kPlain);
  ranks.SetProfiler(options.profiler);
}

template <typename C>
Losses DeviceLearner<C>::Learn(std::span<const Batch> batches, const StepSize& step) {
  for (const Batch& batch : batches) model_.Learn(batch, step, &batch == &batches.back());
  return model_.TakeLosses();
}

template <typename C>
std::map<std::string, double> DeviceLearner<C>::AfterStep(double rate_part) {
  std::vector<std::vector<float>> loads = model_.TakeLoads();
  const Model<float>::ReplayCounts counts = model_.TakeReplay();
  float replay[] = {static_cast<float>(counts.replayed), static_cast<float>(counts.agreed)};
  Collectives* const host = ranks_.groups().host;
  Balance balance;
  for (std::vector<float>& layer : loads) {
    if (host != nullptr) host->AllReduceSum(layer.data(), layer.size());
    balance.Add(layer);
  }
  if (host != nullptr) host->AllReduceSum(replay, std::size(replay));
  balance.replayed = replay[0];
  balance.agreed = replay[1];
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
