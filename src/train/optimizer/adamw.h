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
  double weight_decay = 0.1;  // of parameters that decay
};

// Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019); the order of operations is
// PyTorch's torch.optim.AdamW. Owns the moments of the parameters that it was made for, which it
// borrows: they keep their shapes and outlive it. A parameter without gradient is a part of the
// checkpoint that is not learned, and is left alone. One thread calls; loops run on `pool`.
class AdamW {
 public:
  AdamW(std::vector<Parameter<float>*> parameters, const AdamWOptions& options);

  // One update by the gradients times `gradient_scale` (clipping), after which they are zero.
  // Element by element: results do not depend on the threads.
  void Step(double learning_rate, double gradient_scale, ThreadPool& pool);

  struct Moments {
    std::vector<float> first, second;  // as the parameter's value; empty without gradient
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
