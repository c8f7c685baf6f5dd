// What a rank does in a training step, one entry after the other: a list that is planned, checked,
// printed and walked.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace switchyard::overlap {

// Parts of a layer, in the order of a forward pass. The backward pass goes kFinish, kCombine,
// kExperts, kDispatch, kAttention; kShared may come anywhere between kDispatch and kFinish, and
// between kFinish and kAttention. kDispatch and kCombine begin an exchange in either direction; the
// phase that needs the rows ends it (forward: kExperts, kFinish; backward: kExperts, kAttention),
// so what a schedule puts in between runs while rows travel. Layers without experts do their
// feed-forward in kExperts, and have no kDispatch, kShared and kCombine.
enum class Phase : uint8_t { kAttention, kDispatch, kShared, kExperts, kCombine, kFinish };

enum class Kind : uint8_t {
  kBegin,            // a micro-batch: its tokens, rows and positions
  kReceive,          // its hidden states from the stage before
  kForward,          // one phase of one layer
  kSend,             // its hidden states to the stage after
  kHeads,            // losses and their gradients, on the last stage
  kReceiveGradient,  // the gradient of what was sent, from the stage after
  kBackward,         // one phase of one layer
  kSendGradient,     // the gradient of what was received, to the stage before
  kSumGradients,     // over the ranks: of a layer, or (kNone) of what belongs to no layer
  kAwaitSums,        // until all of them are there
};

// kBegin to kSendGradient name their micro-batch, kForward and kBackward a layer and a phase too,
// kSumGradients a layer. What an operation does not name is left as it stands here.
struct Operation {
  static constexpr int kNone = -1;

  Kind kind = Kind::kBegin;
  int micro_batch = kNone;
  int layer = kNone;  // counted from the stage's first
  Phase phase = Phase::kAttention;

  auto operator<=>(const Operation&) const = default;
};

// "attention", "dispatch", …
const char* Name(Phase phase);
// "forward", "send gradient", …
const char* Name(Kind kind);
// In messages: "backward of micro-batch 2, layer 1, experts". Layers count from `first_layer`.
std::string Describe(const Operation& operation, int first_layer = 0);

// The exchanges: whether an operation begins one, and whether it needs the rows of one.
bool BeginsExchange(const Operation& operation);
bool EndsExchange(const Operation& operation);

}  // namespace switchyard::overlap
