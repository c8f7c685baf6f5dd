// Adapts a Model to the training loop.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "profile/profiler.h"
#include "schedule/plan.h"
#include "train/batch.h"
#include "train/exchange/stage_link.h"
#include "train/gradients.h"
#include "train/model.h"
#include "train/optimizer/device_update.h"
#include "train/parameter.h"

namespace switchyard::train {

// The model interface of the training loop.

// Owned by one rank; used by the rank's thread only. Every rank makes the same calls in the same
// order.
class TrainedModel {
 public:
  virtual ~TrainedModel() = default;

  // Returns the same objects at the same addresses on every call. Parameters without gradient are
  // saved and loaded, but not updated by the optimizer (selection biases).
  virtual std::vector<Parameter<float>*> Parameters() = 0;
  // Additional names under which checkpoints store a parameter.
  virtual std::vector<std::pair<std::string, const Parameter<float>*>> Aliases() { return {}; }

  // Accumulates the gradients of the step's micro-batches and returns this rank's shares of the
  // losses. Every rank must have the same number of micro-batches; some may be empty.
  virtual Losses Learn(std::span<const Batch> batches, const StepSize& step) = 0;
  // Called after the last micro-batch of the step. Sums partial gradients over ranks, unless Learn
  // has already summed them.
  virtual void SumGradients() {}
  // Called after the optimizer has updated this rank's shards of the parameters (Shards). Sends
  // them to the other copies.
  virtual void GatherShards() {}
  // Called after the optimizer has updated the parameters. Updates the rest of the model's state:
  // selection biases, and copies of weights in other formats. `rate_part`: RateFraction of the
  // step. Returns metrics for the log, the same on every rank: "balancedness", …
  virtual std::map<std::string, double> AfterStep(double /*rate_part*/) { return {}; }
  // Called instead of AfterStep if the update of the step is skipped. Forgets what the step has
  // counted.
  virtual void SkipStep() {}
  // The update of parameters that a device holds; null: values, gradients and moments are in the
  // host's memory.
  virtual DeviceUpdate* update() { return nullptr; }
};

// Balance of expert loads.

// Aggregate over a number of MoE layers.
struct Balance {
  double layers = 0.0;
  double sum = 0.0;    // over layers: mean load / largest load, or 1 for a layer without load
  double worst = 1.0;  // minimum over layers
  double dead = 0.0;   // number of experts without a token
  // Tokens with given experts, summed over the layers, and how many of them would have selected the
  // same set.
  double replayed = 0.0, agreed = 0.0;

  // Adds one layer. loads: [experts] tokens of each expert, summed over all ranks.
  void Add(std::span<const float> loads);
  // Aggregates over the layers of all pipeline stages. Collective over `world`, which has the same
  // number of ranks in each stage. All ranks of a stage must have equal values.
  Balance OfAllStages(Collectives& world, int stages) const;
  // "balancedness", "balancedness_worst", "dead_experts"; empty if there is no MoE layer. With
  // given experts also "routing_agreement", agreed / replayed.
  std::map<std::string, double> Figures() const;
};

// Adapts a Model to the training loop.

struct LearnerOptions {
  // Auxiliary-loss-free balancing: change of an expert's selection bias after each training step;
  // 0: off.
  double bias_step = 0.0;
  // Scales bias_step with the learning rate, so that expert choices settle as the weights do. With
  // a constant step, loads oscillate until the end of the run. DeepSeek-V3 sets the step to zero
  // for the last tokens (arXiv:2412.19437, 4.2).
  bool bias_step_falls = true;
  // The order of operations; results are bitwise independent of it. kZeroBubble needs a model with
  // separate weight gradients (BackwardOptions).
  schedule::Order order = schedule::Order::kPlain;
  // Records the operations of steps; null: none. Outlives the learner.
  profile::Profiler* profiler = nullptr;
};

// The groups of ranks that a learner communicates with (run/layout.h). All are borrowed. The
// defaults are those of a single rank.
struct LearnerRanks {
  Collectives* world = nullptr;
  Collectives* stage = nullptr;  // ranks with the same layers
  GradientGroups gradients;
  int stages = 1, stage_index = 0;  // number of pipeline stages, and the index of this rank's stage
  StageLink* link = nullptr;        // link to the previous and the next stage
  // Sums each layer's gradients as soon as they are complete, overlapped with the backward pass;
  // null: `gradients` sums them at the end of the step, on the rank's thread.
  GradientSums* early_sums = nullptr;
};

// Connects a model to the collectives of its ranks. Learn executes the step's schedule
// (src/schedule); gradients are summed over ranks when it returns. Everything is borrowed.
// Used by the rank's thread only.
class Learner : public TrainedModel {
 public:
  Learner(Model<float>& model, const LearnerOptions& options, const LearnerRanks& ranks);
  // For a single pipeline stage without tensor parallelism. `all`: every rank (null: a single
  // rank); `expert_copies`: ranks with the same experts (null: this rank only).
  Learner(Model<float>& model, const LearnerOptions& options, Collectives* all,
          Collectives* expert_copies = nullptr);

  std::vector<Parameter<float>*> Parameters() override { return model_.parameters(); }
  std::vector<std::pair<std::string, const Parameter<float>*>> Aliases() override {
    return model_.aliases();
  }
  Losses Learn(std::span<const Batch> batches, const StepSize& step) override;
  void GatherShards() override { train::GatherShards(model_.parameters(), ranks_.gradients); }
  // Metrics over all stages, if the model has experts. "balancedness": mean load / largest load of
  // an MoE layer in the step, averaged over the layers. "balancedness_worst": the minimum over the
  // layers. "dead_experts": the number of experts without a token. "routing_agreement", if the
  // batch gives experts: the fraction of tokens that would have selected the same ones, over the
  // layers.
  std::map<std::string, double> AfterStep(double rate_part) override;
  void SkipStep() override { model_.ClearLoads(); }

  // The activations of a step, by the formula of Model::CountActivations. `rows`: of a micro-batch,
  // in a TP group.
  struct ActivationMemory {
    int slots = 0;                        // micro-batches in flight
    int64_t bytes = 0, unrecomputed = 0;  // with the model's Recompute, and if all were kept
  };
  ActivationMemory Activations(int micro_batches, int64_t rows) const;

  // The shape and schedule of the last step.
  const schedule::StepShape& shape() const { return shape_; }
  std::span<const schedule::Operation> list() const { return list_; }

 private:
  void PlanStep(int micro_batches);
  void Execute(const schedule::Operation& operation, std::span<const Batch> batches,
               const StepSize& step, Losses* losses);
  profile::Span SpanOf(const schedule::Operation& operation) const;
  void SumLayer(int layer);

  Model<float>& model_;
  const LearnerOptions options_;
  const LearnerRanks ranks_;
  schedule::StepShape shape_;
  std::vector<schedule::Operation>
      list_;                         // schedule of a step of shape_; empty before the first step
  std::vector<Pass<float>> passes_;  // [places] micro-batch m uses passes_[m % places]
  // [layers + 1] parameters of each layer; the last entry holds those outside of all layers.
  std::vector<std::vector<Parameter<float>*>> parameters_;
};

}  // namespace switchyard::train
