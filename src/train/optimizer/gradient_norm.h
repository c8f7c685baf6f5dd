// Global gradient norm of the whole model.
#pragma once

#include <string>

#include "core/parallel.h"
#include "train/optimizer/catalog.h"

namespace switchyard::train {

struct GradientNorm {
  double norm = 0;
  // Name of the first tensor, in order of names, whose gradient has an infinite or NaN element;
  // empty: all are finite. If it is not empty, `norm` is meaningless.
  std::string not_finite;
};

// Every element counts once, even if it is replicated on several ranks. Gradients of replicated
// tensors must already be equal on their ranks. Sums are in double: first over blocks within a
// tensor (or a rank's piece of it), then over tensors in order of names. So if no tensor is
// partitioned, the result is bitwise independent of the number of ranks and threads. Collective.
GradientNorm NormOfGradients(const Catalog& catalog, ThreadPool& pool);

// The factor that limits the gradient norm to `limit` (0: no limit), as
// torch.nn.utils.clip_grad_norm_ computes it: min(1, limit / (norm + 1e-6)).
double ClipScale(double norm, double limit);

}  // namespace switchyard::train
