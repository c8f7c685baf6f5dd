// The operations of a rank in a step of training or of serving. A step is a list of them in
// execution order, which is planned (plan.h, serve.h), verified (verify.h), printed (print.h) and
// executed.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace switchyard::schedule {

// Phases of a layer, in the order of the forward pass. In forward and backward passes, kDispatch
// and kCombine start an all-to-all. The phase that consumes the rows completes the all-to-all: in a
// forward pass kExperts and kFinish, in a backward pass kExperts and kAttention. So the operations
// scheduled in between overlap the communication. Dense layers compute their feed-forward in
// kExperts, and have no kRoute, kDispatch, kShared, kCombine and kDown.
//
// Training has no kQkv, kRoute and kDown; its kAttention includes the router. The backward pass
// runs kFinish, kCombine, kExperts, kDispatch, kAttention. kShared may run anywhere between
// kDispatch and kFinish in the forward pass, and between kFinish and kAttention in the backward
// pass.
//
// Serving has kQkv and kDown only in schedules that separate them from kAttention and kExperts. In
// other schedules, kAttention and kExperts include them. kShared runs while the exchange that
// ServeShape::shared_under selects is in flight.
enum class Phase : uint8_t {
  kQkv,        // norm and input projections of attention
  kAttention,  // attention, its output projection, and the sum of its output over ranks
  kRoute,      // norm of the feed-forward's input, router, top-k
  kDispatch,
  kShared,  // the shared expert
  kExperts,
  kCombine,
  kDown,  // down projection of the experts, in parts; combine sends a part as soon as it is
          // computed
  kFinish,
};

enum class Kind : uint8_t {
  kBegin,            // training: load a micro-batch (its tokens, rows and positions)
  kEmbed,            // serving: load a micro-batch and look up its embeddings
  kReceive,          // receive hidden states from the previous stage
  kForward,          // forward of one phase of one layer
  kSend,             // send hidden states to the next stage
  kHeads,            // training: losses and their gradients, on the last stage
  kLogits,           // serving: logits of the rows that need a token, on the last stage
  kSample,           // serving: sample the tokens
  kReceiveGradient,  // receive the gradient of the sent hidden states from the next stage
  kBackward,         // backward of one phase of one layer
  kSendGradient,     // send the gradient of the received hidden states to the previous stage
  kWeights,          // weight gradients of one layer, if its backward pass leaves them out
  // Start the all-reduce of a layer's gradients. If layer is kNone: of all gradients outside
  // layers.
  kSumGradients,
  kAwaitSums,  // wait for all gradient all-reduces
};

// kBegin to kWeights set micro_batch. kForward and kBackward set layer and phase too. kWeights and
// kSumGradients set layer. Unused fields keep the defaults below.
struct Operation {
  static constexpr int kNone = -1;

  Kind kind = Kind::kBegin;
  int micro_batch = kNone;  // index of a micro-batch in a training step, or in a served batch
  int layer = kNone;        // index within the stage
  Phase phase = Phase::kAttention;

  auto operator<=>(const Operation&) const = default;
};

// "attention", "dispatch", …
const char* Name(Phase phase);
// "forward", "send gradient", …
const char* Name(Kind kind);
// For messages: "backward of micro-batch 2, layer 1, experts". `first_layer` is added to the layer
// number.
std::string Describe(const Operation& operation, int first_layer = 0);

// BeginsExchange: whether an operation starts an all-to-all. EndsExchange: whether it consumes the
// rows of an all-to-all.
bool BeginsExchange(const Operation& operation);
bool EndsExchange(const Operation& operation);

}  // namespace switchyard::schedule
