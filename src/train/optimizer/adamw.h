// AdamW on float32 master weights.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "train/parameter.h"

namespace switchyard::train {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // applies to parameters with `decay`
};

// Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019), with the operation order of
// PyTorch's torch.optim.AdamW. Owns the moments of its parameters and borrows the parameters, which
// must keep their shapes and outlive it. A parameter without gradient is not trained and is left
// unchanged. Called by one thread; loops run on `pool`.
class AdamW {
 public:
  AdamW(std::vector<Parameter<float>*> parameters, const AdamWOptions& options);

  // Updates the parameters once, with the gradients multiplied by `gradient_scale` (clipping). Then
  // sets the gradients to zero. The update is elementwise, so the results do not depend on the
  // number of threads.
  void Step(double learning_rate, double gradient_scale, ThreadPool& pool);

  struct Moments {
    std::vector<float> first, second;  // same size as the value; empty without gradient
  };
  const std::vector<Parameter<float>*>& parameters() const { return parameters_; }
  std::vector<Moments>& moments() { return moments_; }  // in the order of the parameters
  int64_t steps() const { return steps_; }              // taken so far; corrects the moments' bias
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  std::vector<Parameter<float>*> parameters_;
  std::vector<Moments> moments_;
  AdamWOptions options_;
  int64_t steps_ = 0;
};

}  // namespace switchyard::train
