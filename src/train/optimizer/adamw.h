// AdamW, and the norm of the gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "train/optimizer/catalog.h"
#include "train/parameter.h"

namespace switchyard::train {

// AdamW on float32 master weights.

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // applies to parameters with `decay`
};

// Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019), with the operation order of
// PyTorch's torch.optim.AdamW. Owns the moments of its parameters and borrows the parameters, which
// must keep their shapes and outlive it. A parameter without gradient is not trained and is left
// unchanged. Of a parameter with shards, only this rank's shard has moments and is updated
// (GatherShards completes the update). Set shards before the construction. Called by one thread;
// loops run on `pool`.
class AdamW {
 public:
  AdamW(std::vector<Parameter<float>*> parameters, const AdamWOptions& options);

  // Updates the parameters once, with the gradients multiplied by `gradient_scale` (clipping). Then
  // sets the gradients to zero, also those outside of this rank's shards. The update is
  // elementwise, so the results do not depend on the number of threads or of shards.
  void Step(double learning_rate, double gradient_scale, ThreadPool& pool);

  struct Moments {
    std::vector<float> first, second;  // of Parameter::MyShard; empty without gradient
  };
  const AdamWOptions& options() const { return options_; }
  const std::vector<Parameter<float>*>& parameters() const { return parameters_; }
  std::vector<Moments>& moments() { return moments_; }  // in the order of the parameters
  int64_t steps() const { return steps_; }              // taken so far; corrects the moments' bias
  void set_steps(int64_t steps) { steps_ = steps; }
  int64_t moment_bytes() const;  // of all moments of this rank

 private:
  std::vector<Parameter<float>*> parameters_;
  std::vector<Moments> moments_;
  AdamWOptions options_;
  int64_t steps_ = 0;
};

// Global gradient norm of the whole model.

struct GradientNorm {
  double norm = 0;
  // Name of the first tensor, in order of names, whose gradient has an infinite or NaN element;
  // empty: all are finite. If it is not empty, `norm` is meaningless.
  std::string not_finite;
};

// Every element counts once, even if it is replicated on several ranks. Gradients of replicated
// tensors must already be equal on their ranks. Sums are in double: first over blocks within a
// tensor (or a rank's piece of it), then over tensors in order of names. So if no tensor is
// partitioned, the result is bitwise independent of the number of ranks and threads. Shards do not
// change it: each rank sums the blocks of its shards, and the sums of blocks are gathered from the
// copies. Collective.
GradientNorm NormOfGradients(const Catalog& catalog, ThreadPool& pool);

// The factor that limits the gradient norm to `limit` (0: no limit), as
// torch.nn.utils.clip_grad_norm_ computes it: min(1, limit / (norm + 1e-6)).
double ClipScale(double norm, double limit);

}  // namespace switchyard::train
