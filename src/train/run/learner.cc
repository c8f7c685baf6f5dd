#include "train/run/learner.h"

#include <algorithm>
#include <numeric>

#include "train/gradients.h"
#include "train/interleave.h"

namespace switchyard::train {

namespace {

// Of the MoE layers of a stage.
struct Evenness {
  double sum = 0.0, worst = 1.0, dead = 0.0, layers = 0.0;
};

}  // namespace

Learner::Learner(Model<float>& model, const LearnerOptions& options, const LearnerRanks& ranks)
    : model_(model), options_(options), ranks_(ranks) {}

Learner::Learner(Model<float>& model, const LearnerOptions& options, Collectives* all,
                 Collectives* expert_copies)
    : Learner(model, options,
              {.world = all,
               .stage = all,
               .gradients = {.stage = all, .copies = all, .expert_copies = expert_copies}}) {}

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
  const std::vector<Parameter<float>*> parameters = model_.parameters();
  train::SumGradients(parameters, ranks_.gradients);
}

std::map<std::string, double> Learner::AfterStep() {
  std::vector<std::vector<float>> loads = model_.loads();
  model_.ClearLoads();
  if (!model_.config().has_moe()) return {};
  Evenness mine{.layers = static_cast<double>(loads.size())};
  for (std::vector<float>& layer : loads) {
    if (ranks_.stage != nullptr) ranks_.stage->AllReduceSum(layer.data(), layer.size());
    const double most = *std::ranges::max_element(layer);
    const double mean =
        std::accumulate(layer.begin(), layer.end(), 0.0) / static_cast<double>(layer.size());
    const double even = most > 0.0 ? mean / most : 1.0;
    mine.sum += even;
    mine.worst = std::min(mine.worst, even);
    mine.dead += static_cast<double>(std::ranges::count(layer, 0.0f));
  }
  if (options_.bias_step > 0.0) model_.MoveBiases(loads, options_.bias_step);
  std::vector<Evenness> each = {mine};
  size_t step = 1;  // from the first rank of a stage to that of the next
  if (ranks_.world != nullptr) {
    each.resize(ranks_.world->size());
    ranks_.world->AllGatherV(&mine, each.data(), std::vector<size_t>(each.size(), sizeof mine));
    step = ranks_.stage == nullptr ? 1 : ranks_.stage->size();
  }
  Evenness all;
  for (size_t rank = 0; rank < each.size(); rank += step) {
    all.sum += each[rank].sum;
    all.worst = std::min(all.worst, each[rank].worst);
    all.dead += each[rank].dead;
    all.layers += each[rank].layers;
  }
  if (all.layers == 0.0) return {};
  return {{"balancedness", all.sum / all.layers},
          {"balancedness_worst", all.worst},
          {"dead_experts", all.dead}};
}

}  // namespace switchyard::train
