// How a backward pass runs: activations that it computes again instead of keeping them from the
// forward pass, and weight gradients that it leaves for later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace switchyard::train {

// What is dropped after the forward pass and computed again, with the same bits, before its
// gradient (Chen et al., arXiv:1604.06174; selective: Korthikanti et al., arXiv:2205.05198).
enum class Recompute : uint8_t {
  kNone,
  kMoe,        // MoE layers: routed and shared experts
  kAttention,  // attention with its projections and the norm before it
  // The whole layer but its input, the router's scores, and rows that came from other ranks. Those
  // rows stay, because their recomputation would be another exchange.
  kLayer,
};
inline bool DropsAttention(Recompute r) {
  return r == Recompute::kAttention || r == Recompute::kLayer;
}
inline bool DropsExperts(Recompute r) { return r == Recompute::kMoe || r == Recompute::kLayer; }

struct BackwardOptions {
  Recompute recompute = Recompute::kNone;
  // The weight gradients of linear layers are left out, and computed by a separate call
  // (schedule::Kind::kWeights). Those of norms, routers, embedding and heads, and of the input
  // projection of MTP modules, are not. Needs Recompute::kNone, because the weight gradients read
  // the activations once more.
  bool separate_weights = false;
};

// Numbers of elements of the activations of one micro-batch in a layer, or in all layers of a rank.
// Indices are not counted.
struct ActivationCounts {
  int64_t kept = 0;  // between the forward and the backward pass
  // Dropped between the passes. All layers use the same buffers for them (SpareStates).
  int64_t attention = 0, experts = 0, dense = 0, rest = 0;
  int64_t undropped = 0;  // what the dropped activations of all layers would take if they were kept

  int64_t dropped() const { return attention + experts + dense + rest; }
  // Adds a layer, whose dropped activations need no buffers of their own.
  void AddLayer(const ActivationCounts& layer) {
    kept += layer.kept;
    undropped += layer.dropped();
    attention = std::max(attention, layer.attention);
    experts = std::max(experts, layer.experts);
    dense = std::max(dense, layer.dense);
    rest = std::max(rest, layer.rest);
  }
};

// Buffers for dropped activations. A layer takes them while it computes and gives them back, so a
// rank has as many as layers compute at the same time: two in a schedule that interleaves two
// micro-batches. Owned by the model; used by the rank's thread only.
template <typename State>
class SpareStates {
 public:
  std::unique_ptr<State> Take() {
    if (free_.empty()) return std::make_unique<State>();
    std::unique_ptr<State> state = std::move(free_.back());
    free_.pop_back();
    return state;
  }
  void Give(std::unique_ptr<State> state) { free_.push_back(std::move(state)); }
  const std::vector<std::unique_ptr<State>>& free() const { return free_; }

 private:
  std::vector<std::unique_ptr<State>> free_;
};

}  // namespace switchyard::train
