// Adapts a DeviceModel to the training loop.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/attached_timer.h"
#include "train/device/model.h"
#include "train/run/learner.h"

namespace switchyard::train {

// Gradients, moments and values are on the device between two checkpoints. Borrows
// the host's model, the operations and the ranks. Used by the rank's thread only.
template <typename C>
class DeviceLearner final : public TrainedModel {
 public:
  // Throws errors of DeviceModel. `options.order` must be kPlain.
  DeviceLearner(Model<float>& host, const LearnerOptions& options, TrainOps<C>& ops,
                DeviceRanks& ranks, const DeviceOptions& device = {});
  ~DeviceLearner() override { ranks_.SetProfiler(nullptr); }

  std::vector<Parameter<float>*> Parameters() override { return host_.parameters(); }
  std::vector<std::pair<std::string, const Parameter<float>*>> Aliases() override {
    return host_.aliases();
  }
  Losses Learn(std::span<const Batch> batches, const StepSize& step) override;
  void SumGradients() override { model_.parameters().SumGradients(); }
  void GatherShards() override { model_.parameters().GatherShards(); }
  std::map<std::string, double> AfterStep(double rate_part) override;
  void SkipStep() override {
    model_.TakeLoads();
    model_.TakeReplay();
  }
  DeviceUpdate* update() override { return &model_.parameters(); }

  const DeviceModel<C>& model() const { return model_; }

 private:
  Model<float>& host_;
  const LearnerOptions options_;
  DeviceRanks& ranks_;
  DeviceModel<C> model_;
  const AttachedTimer timer_;  // of the operations, for the profiler
};

}  // namespace switchyard::train
