// A Model as the training loop sees it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "overlap/plan.h"
#include "train/exchange/stage_link.h"
#include "train/gradients.h"
#include "train/model.h"
#include "train/run/gradient_sums.h"
#include "train/run/trained_model.h"

namespace switchyard::train {

struct LearnerOptions {
  // Auxiliary-loss-free balancing: how far an expert's selection bias moves after a step; 0: not.
  double bias_step = 0.0;
  // That step falls with the learning rate, so that choices settle as weights do: with a constant
  // one, loads swing by it to the end. DeepSeek-V3 sets it to zero for its last tokens
  // (arXiv:2412.19437, 4.2).
  bool bias_step_falls = true;
  // The order of work; no bit of a step depends on it.
  overlap::Order schedule = overlap::Order::kPlain;
};

// The ranks of a run as a learner sees them (run/layout.h); all is borrowed. As it stands: one
// alone.
struct LearnerRanks {
  Collectives* world = nullptr;
  Collectives* stage = nullptr;  // that have the same layers
  GradientGroups gradients;
  int stages = 1, stage_index = 0;  // of the pipeline
  StageLink* link = nullptr;        // to the neighbours in the pipeline
  // Sums each layer's gradients as soon as they are complete, under the rest of the backward pass;
  // null: `gradients`, all at the end, by the rank's thread.
  GradientSums* early_sums = nullptr;
};

// Joins a model to the collectives of its ranks. Learn walks the step's list of operations
// (src/overlap) and does nothing else; gradients are summed over ranks when it returns. Everything
// is borrowed. Used by the rank's thread.
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
  // Figures of all stages, where the model has experts: "balancedness", the mean over MoE layers of
  // mean load over largest load in the step; "balancedness_worst", the least of them;
  // "dead_experts", how many had no token.
  std::map<std::string, double> AfterStep(double rate_part) override;

  // How Learn went about the last step.
  const overlap::StepShape& shape() const { return shape_; }
  std::span<const overlap::Operation> list() const { return list_; }

 private:
  void PlanStep(int micro_batches);
  void Do(const overlap::Operation& operation, std::span<const Batch> batches, const StepSize& step,
          Losses* losses);
  void SumLayer(int layer);

  Model<float>& model_;
  const LearnerOptions options_;
  const LearnerRanks ranks_;
  overlap::StepShape shape_;
  std::vector<overlap::Operation> list_;  // of a step of shape_; empty before the first
  std::vector<Pass<float>> passes_;       // [places] micro-batch m uses m % places
  // [layers + 1] those of each layer, last those of none.
  std::vector<std::vector<Parameter<float>*>> parameters_;
};

}  // namespace switchyard::train
