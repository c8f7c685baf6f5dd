// What the training loop needs of a model.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/batch.h"
#include "train/losses.h"
#include "train/parameter.h"

namespace switchyard::train {

// Belongs to one rank and its thread. Every rank makes the same calls in the same order.
class TrainedModel {
 public:
  virtual ~TrainedModel() = default;

  // The same objects at every call, at the same places. One without gradient is saved and loaded,
  // but not touched by the optimizer (selection biases).
  virtual std::vector<Parameter<float>*> Parameters() = 0;
  // Names under which a checkpoint repeats a parameter.
  virtual std::vector<std::pair<std::string, const Parameter<float>*>> Aliases() { return {}; }

  // Adds the gradients of the step's micro-batches (this rank's, as many on every rank, some of
  // them maybe empty) and returns this rank's shares of the losses.
  virtual Losses Learn(std::span<const Batch> batches, const StepSize& step) = 0;
  // After the step's last micro-batch: adds up what several ranks hold over them, unless Learn has.
  virtual void SumGradients() {}
  // After the parameters have changed: what a model keeps of its own (biases moved by load, copies
  // in other formats). `rate_part`: RatePart of the step. Returns figures for the log, the same on
  // every rank: "balancedness", …
  virtual std::map<std::string, double> AfterStep(double /*rate_part*/) { return {}; }
};

}  // namespace switchyard::train
