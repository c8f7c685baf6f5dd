// Global gradient norm of the whole model.
#pragma once

#include <string>

#include "core/parallel.h"
#include "train/optimizer/catalog.h"

namespace switchyard::train {

struct GradientNorm {
  double norm = 0;
  // The first tensor, by name, whose gradient has an infinite or NaN element; empty: none. If set,
  // `norm` is meaningless.
  std::string not_finite;
};

// Every element counts once, even if it is replicated on several ranks. Gradients of replicated
// tensors must already be equal on their ranks. Sums are in double: within a tensor (or a rank's
// piece of it) in blocks, then in order of names. So the result is bitwise independent of the
// number of ranks and threads as long as no tensor is partitioned. Collective.
GradientNorm NormOfGradients(const Catalog& catalog, ThreadPool& pool);

// The factor that limits the gradient norm to `limit` (0: no limit), as
// torch.nn.utils.clip_grad_norm_ computes it: min(1, limit / (norm + 1e-6)).
double ClipScale(double norm, double limit);

}  // namespace switchyard::train
