#include "train/run/learner.h"

#include <algorithm>
#include <numeric>

#include "train/gradients.h"
#include "train/interleave.h"

namespace switchyard::train {

Learner::Learner(Model<float>& model, const LearnerOptions& options, Collectives* all,
                 Collectives* expert_copies)
    : model_(model), options_(options), all_(all), expert_copies_(expert_copies) {}

Losses Learner::Learn(std::span<const Batch> batches, const StepSize& step) {
  Losses losses;
  for (size_t i = 0; i < batches.size(); ++i) {
    Pass<float>* pass = &passes_[i % 2];
    model_.Begin(batches[i], step, pass);
    if (options_.overlap && i > 0) {
      RunInterleaved(model_, &passes_[(i - 1) % 2], pass);
    } else {
      model_.Forward(pass);
    }
    model_.Heads(true, pass);
    losses += pass->losses;
    if (!options_.overlap || i + 1 == batches.size()) model_.Backward(pass);
  }
  return losses;
}

void Learner::SumGradients() {
  if (all_ == nullptr) return;
  const std::vector<Parameter<float>*> parameters = model_.parameters();
  train::SumGradients(parameters, *all_, expert_copies_);
}

std::map<std::string, double> Learner::AfterStep() {
  std::vector<std::vector<float>> loads = model_.loads();
  model_.ClearLoads();
  if (loads.empty()) return {};
  double sum = 0.0, worst = 1.0, dead = 0.0;
  for (std::vector<float>& layer : loads) {
    if (all_ != nullptr) all_->AllReduceSum(layer.data(), layer.size());
    const double most = *std::ranges::max_element(layer);
    const double mean =
        std::accumulate(layer.begin(), layer.end(), 0.0) / static_cast<double>(layer.size());
    const double even = most > 0.0 ? mean / most : 1.0;
    sum += even;
    worst = std::min(worst, even);
    dead += static_cast<double>(std::ranges::count(layer, 0.0f));
  }
  if (options_.bias_step > 0.0) model_.MoveBiases(loads, options_.bias_step);
  return {{"balancedness", sum / static_cast<double>(loads.size())},
          {"balancedness_worst", worst},
          {"dead_experts", dead}};
}

}  // namespace switchyard::train
