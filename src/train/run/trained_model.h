// The model interface of the training loop.
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
  // Called after the optimizer has updated the parameters. Updates the rest of the model's state:
  // selection biases, and copies of weights in other formats. `rate_part`: RateFraction of the
  // step. Returns metrics for the log, the same on every rank: "balancedness", …
  virtual std::map<std::string, double> AfterStep(double /*rate_part*/) { return {}; }
};

}  // namespace switchyard::train
