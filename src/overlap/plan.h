// The order of work of one rank in a training step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "overlap/operation.h"

namespace switchyard::overlap {

enum class Order : uint8_t {
  kPlain,       // a forward pass or a backward pass at a time
  kOverlapped,  // the forward pass of one micro-batch beside the backward pass of another
};

// All a rank's list depends on: ranks of one stage have the same list.
struct StepShape {
  std::vector<bool> experts;  // [layers of this stage, MTP modules too]: which have experts
  int micro_batches = 1;
  Order order = Order::kPlain;
  int stages = 1, stage = 0;  // of the pipeline
  // A layer's gradients are summed over ranks as soon as its last backward pass is done, under the
  // rest of the backward pass, and not all of them at the end.
  bool early_sums = false;
  int first_layer = 0;  // the model's number of the stage's first layer, for printing

  int layers() const { return static_cast<int>(experts.size()); }
  bool first() const { return stage == 0; }
  bool last() const { return stage + 1 == stages; }
};

// How many forward passes a stage runs before its first backward pass. In plain 1F1B (PipeDream,
// arXiv:2006.09503; Megatron-LM, arXiv:2104.04473) stages - 1 - stage, and one more comes right
// before each backward pass. Overlapped, forward pass f runs beside backward pass f - WarmUp: one
// more, so that the last stage has something to go backward, and two for each stage that follows,
// because rows come back only at the end of a pair there and the next pair here should have begun.
int WarmUp(const StepShape& shape);

// How many micro-batches are under way at once at most, which is what a rank needs memory for:
// micro-batch m may use place m % Places.
int Places(const StepShape& shape);

// The list, of at least one layer. One stage, plain: micro-batch after micro-batch, forward and
// backward. Otherwise 1F1B: warm-up, steady state, cool-down.
std::vector<Operation> Plan(const StepShape& shape);

// The phases of a layer that a pass goes through alone, in order; kShared lies under an exchange.
std::span<const Phase> ForwardPhases(bool experts);
std::span<const Phase> BackwardPhases(bool experts);

// One phase of a layer, of the micro-batch that goes backward or of the one that goes forward.
struct PairedPhase {
  Kind kind;  // kForward or kBackward
  Phase phase;
};
// The order within a pair of layers. Each exchange has the other micro-batch's computation between
// its begin and its end: the gradient of combine has attention, dispatch the experts' gradient, the
// gradient of dispatch the experts, combine attention's gradient (DeepSeek's DualPipe,
// arXiv:2412.19437, figure 4).
std::span<const PairedPhase> PairOrder();

}  // namespace switchyard::overlap
