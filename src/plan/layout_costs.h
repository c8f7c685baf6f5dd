// The times of the steps of a layout, on all of its pipeline stages.
#pragma once

#include <memory>
#include <vector>

#include "plan/layout.h"
#include "plan/step_cost.h"

namespace switchyard::plan {

struct Question;

// One pass through the pipeline stages of an engine, from the first stage to the last one.
struct PassTime {
  // Includes the copies of hidden rows, if the ranks of the stage copy them.
  std::vector<StepTime> stages;
  double transfer = 0;  // seconds between two stages in which neither of them is busy

  double latency() const;  // seconds from the start in the first stage to the end in the last one
  double slowest() const;  // seconds of the slowest stage: the time between two passes
};

// Error kInvalid if the cost model lacks the layers of the model.
void CheckHasCosts(const ModelConfig& model);

// The step costs of an evaluated layout. The question is not kept.
class LayoutCosts {
 public:
  LayoutCosts(const Question& question, const Layout& layout, const EnginePlan& plan);
  LayoutCosts(const LayoutCosts&) = delete;  // stages refer to its table
  LayoutCosts& operator=(const LayoutCosts&) = delete;

  // The time between two tokens of each of `running` requests (of all groups). With pipeline
  // stages, the requests are divided over the passes in flight. `work` is then that of the slowest
  // stage, with its waits for other stages.
  StepTime Decode(double running, double keys) const;
  // One prefill step; with pipeline stages the latency of one pass, and the work of all stages.
  // `rows`: of all groups.
  StepTime Prefill(double rows, double prompt) const;
  // Seconds of `passes` equal prefill steps that follow each other. With p equal stages, m passes
  // take the time of m + p − 1 of a stage (GPipe, https://arxiv.org/abs/1811.06965).
  double PrefillSeconds(double rows, double prompt, double passes) const;
  StepTime Of(const StepShape& shape) const;  // any step
  PassTime PassOf(const StepShape& shape) const;

  // Decoding requests of all groups in one pass, and the number of passes that have all of them.
  struct MicroBatches {
    double running = 1, passes = 1;
  };
  MicroBatches DecodeMicroBatches(double running) const;
  StepShape DecodeShape(double running, double keys) const;
  StepShape PrefillShape(double rows, double prompt) const;

  int stages() const { return static_cast<int>(stages_.size()); }
  // The costs of steps without and with prompts, on one stage. They have no transfers of hidden
  // rows between stages.
  const StepCosts& steps(bool decode, int stage = 0) const {
    return decode ? stages_[stage]->decode : stages_[stage]->prefill;
  }
  // Seconds in which a rank sends the hidden rows of its attention group to the next stage.
  double SendSeconds(double rows) const;
  // Whether ranks copy these rows themselves, as ranks on CPUs do. Then the sender and the receiver
  // are both busy for SendSeconds, and else neither of them.
  bool copies_rows() const { return !table_.exchange_overlaps; }
  // Seconds until the first stage has the tokens that the last stage sampled.
  double result_seconds() const { return table_.host.seconds; }
  // The maximum number of passes in flight.
  int in_flight() const { return in_flight_; }
  const Ranks& ranks() const { return ranks_; }

 private:
  struct Stage {
    ModelConfig model;
    StepCosts prefill, decode;
    Stage(ModelConfig stage, const LayoutCosts& costs, const Routing& routing);
  };
  Ranks RanksOf(const Question& question, const Layout& layout, const EnginePlan& plan,
                bool decode) const;

  const ModelFormats formats_;  // of the whole model
  const CostTable table_;       // rates of one rank
  const Ranks ranks_, decode_ranks_;
  const int in_flight_;      // passes
  bool crosses_ = false;     // whether two neighbouring stages are on different hosts
  double hidden_bytes_ = 0;  // of a row that a stage sends
  std::vector<std::unique_ptr<Stage>> stages_;
};

// The layers of the stages: those of the plan, or of the flags if the engine has no plan.
std::vector<schedule::LayerRange> LayersOfStages(const Question& question, const Layout& layout,
                                                 const EnginePlan& plan);
// The models of the stages.
std::vector<ModelConfig> ModelsOfStages(const Question& question, const Layout& layout,
                                        const EnginePlan& plan);

}  // namespace switchyard::plan
