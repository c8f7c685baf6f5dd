// The length of the gradient of the whole model.
#pragma once

#include <string>

#include "core/parallel.h"
#include "train/optimizer/catalog.h"

namespace switchyard::train {

struct GradientNorm {
  double norm = 0;
  // The first tensor, by name, whose gradient has an element that is infinite or no number; empty:
  // there is none. Then `norm` means nothing.
  std::string not_finite;
};

// Every element counts once, whichever ranks hold it: gradients of what several ranks hold have to
// be equal there already. Sums are taken in double, within a tensor (or a rank's piece of it) in
// blocks and then in order of names, so that every number of ranks and threads that cuts no tensor
// gives the same bits. Collective.
GradientNorm NormOfGradients(const Catalog& catalog, ThreadPool& pool);

// What gradients are multiplied by so that their norm is at most `limit` (0: no limit), as
// torch.nn.utils.clip_grad_norm_ has it: min(1, limit / (norm + 1e-6)).
double ClipScale(double norm, double limit);

}  // namespace switchyard::train
