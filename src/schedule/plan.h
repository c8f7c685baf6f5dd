// Schedules the operations of one rank in a training step: 1F1B, optionally with overlapped
// all-to-all (DualPipe style) or with separate weight gradients (zero bubble).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/operation.h"

namespace switchyard::schedule {

enum class Order : uint8_t {
  kPlain,       // one forward pass or one backward pass at a time
  kOverlapped,  // the forward pass of one micro-batch interleaved with the backward pass of another
  // ZB-H1 (zero bubble, arXiv:2401.10241): a backward pass leaves out the weight gradients, which
  // no other stage waits for. They are operations of their own that fill the waits of a stage.
  kZeroBubble,
};
const char* Name(Order order);  // as in --schedule: "plain", "overlapped", "zero-bubble"

// All inputs of the schedule. Ranks of one stage have the same schedule.
struct StepShape {
  std::vector<bool> experts;  // [layers of this stage, incl. MTP modules]: true for MoE layers
  int micro_batches = 1;
  Order order = Order::kPlain;
  int stages = 1, stage = 0;  // number of pipeline stages, and the stage of this rank
  // If set, a layer's gradient all-reduce starts as soon as the layer's last backward pass is done,
  // so that it overlaps the rest of the backward pass. Otherwise all of them start at the end of
  // the step.
  bool early_sums = false;
  int first_layer = 0;  // global index of the stage's first layer, for printing

  int layers() const { return static_cast<int>(experts.size()); }
  bool first() const { return stage == 0; }
  bool last() const { return stage + 1 == stages; }
};

// Number of forward passes that a stage runs before its first backward pass. In plain 1F1B
// (PipeDream, arXiv:2006.09503; Megatron-LM, arXiv:2104.04473), it is stages − 1 − stage; then one
// forward pass and one backward pass alternate. In an overlapped schedule, a pair interleaves
// forward pass f with backward pass f − WarmUp. The last stage needs one warm-up pass, so that it
// has a backward pass to pair. Each earlier stage needs two more than the stage that follows it.
// The following stage returns rows only at the end of a pair, and by then this stage should have
// started its next pair.
int WarmUp(const StepShape& shape);

// Number of later backward passes that run before the weight gradients of a micro-batch. With
// Order::kZeroBubble it is the index of the stage, else 0. In 1F1B, stage s has stages − s
// micro-batches in flight. With a delay of s, every stage has `stages` of them, and the last stages
// have weight gradients to compute while the first ones end their backward passes.
int WeightDelay(const StepShape& shape);

// Maximum number of micro-batches in flight. A rank has this number of activation buffers.
// Micro-batch m may use buffer m % MicroBatchSlots.
int MicroBatchSlots(const StepShape& shape);

// Returns the schedule of a stage, which must have at least one layer. With one stage and the plain
// order, it is forward and backward of each micro-batch in turn. Otherwise it is 1F1B: warm-up,
// steady state, cool-down. With Order::kZeroBubble, each backward pass is followed by the weight
// gradients of the micro-batch that is WeightDelay before it. If forward and backward pass and
// weight gradients take the same time, stages wait for one third of the time of Order::kPlain.
std::vector<Operation> Plan(const StepShape& shape);

// Phases of a layer in a forward pass that is not paired, in order. kShared overlaps an all-to-all.
std::span<const Phase> ForwardPhases(bool experts);
std::span<const Phase> BackwardPhases(bool experts);

// One phase of a layer in a pair, for the backward or the forward micro-batch.
struct PairedPhase {
  Kind kind;  // kForward or kBackward
  Phase phase;
};
// Order of the phases within a pair of layers. Computation of the other micro-batch separates the
// start and the completion of each all-to-all (DualPipe, DeepSeek-V3, arXiv:2412.19437, figure 4):
//
//   computation            all-to-all that it overlaps
//   attention              gradient of combine
//   gradient of experts    dispatch
//   experts                gradient of dispatch
//   gradient of attention  combine
std::span<const PairedPhase> PairOrder();

}  // namespace switchyard::schedule
