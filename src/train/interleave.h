// Two micro-batches at once, so that each one's exchanges run under the other's computation.
#pragma once

#include <span>

#include "train/model.h"

namespace switchyard::train {

// One phase of a layer, of the micro-batch that goes backward or of the one that goes forward.
struct InterleavedPhase {
  bool backward;
  Phase phase;
};

// The order within a pair of layers. Each exchange has the other micro-batch's computation between
// its begin and its end: the gradient of combine has attention, dispatch the experts' gradient, the
// gradient of dispatch the experts, combine attention's gradient (DeepSeek's DualPipe,
// arXiv:2412.19437, figure 4).
std::span<const InterleavedPhase> InterleavedOrder();

// The backward pass of `back`, whose Heads are done, beside the forward pass of `forth`, which has
// begun: layers from the last on beside layers from the first on. Every rank makes this call in the
// place of the same two calls; no bit of a result depends on it but the order in which
// micro-batches add to gradients, which is that of the backward passes.
template <typename T>
void RunInterleaved(Model<T>& model, Pass<T>* back, Pass<T>* forth);

}  // namespace switchyard::train
