// A Model as the training loop sees it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "train/gradients.h"
#include "train/model.h"
#include "train/run/trained_model.h"

namespace switchyard::train {

struct LearnerOptions {
  // Auxiliary-loss-free balancing: how far an expert's selection bias moves after a step; 0: not.
  double bias_step = 0.0;
  // Forward of a micro-batch beside the backward of the one before (train/interleave.h).
  bool overlap = false;
};

// The ranks of a run as a learner sees them (run/layout.h); null: this one is alone.
struct LearnerRanks {
  Collectives* world = nullptr;
  Collectives* stage = nullptr;  // that have the same layers
  GradientGroups gradients;
};

// Joins a model to the collectives of its ranks. Everything is borrowed. Used by the rank's thread.
class Learner : public TrainedModel {
 public:
  Learner(Model<float>& model, const LearnerOptions& options, const LearnerRanks& ranks);
  // Of one stage without slices. `all`: every rank (null: one alone); `expert_copies`: those that
  // hold the same experts (null: only this one does).
  Learner(Model<float>& model, const LearnerOptions& options, Collectives* all,
          Collectives* expert_copies = nullptr);

  std::vector<Parameter<float>*> Parameters() override { return model_.parameters(); }
  std::vector<std::pair<std::string, const Parameter<float>*>> Aliases() override {
    return model_.aliases();
  }
  Losses Learn(std::span<const Batch> batches, const StepSize& step) override;
  void SumGradients() override;
  // Figures, where the model has experts: "balancedness", the mean over MoE layers of mean load
  // over largest load in the step; "balancedness_worst", the least of them; "dead_experts", how
  // many had no token.
  std::map<std::string, double> AfterStep() override;

 private:
  Model<float>& model_;
  const LearnerOptions options_;
  const LearnerRanks ranks_;
  Pass<float> passes_[2];
};

}  // namespace switchyard::train
