// The least time of a decode step in which two kinds of ranks read weights at once: ranks with
// attention and some experts, and ranks with experts only (MeshShape::expert_ranks).
//
// Weights are read once per step, and nothing else counts: neither keys and values, nor arithmetic,
// nor the exchange of rows. So every step takes at least the bound.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::plan {

// Numbers of different experts of a layer that have rows in a step, by the ranks that read them.
struct ExpertReads {
  double attending = 0, others = 0;
  double sum() const { return attending + others; }
};

// [layers, experts] whether an attending rank holds the expert. `slots` [layers, physical experts]:
// the logical expert of each slot, −1 in layers without experts; the first `attending` slots of a
// layer are those of attending ranks.
std::vector<bool> HeldByAttending(std::span<const int32_t> slots, int64_t layers, int64_t attending,
                                  int64_t experts);

// Counts the experts of passes. A value type.
class ChosenExperts {
 public:
  ChosenExperts() = default;
  ChosenExperts(int64_t layers, int64_t experts) : experts_(experts), sums_(layers) {}

  // Adds a pass. `routed` [rows, layers, top_k]: the chosen experts; ids outside [0, experts) do
  // not count. `held`: result of HeldByAttending. An expert that several ranks hold counts for the
  // attending one, as with --ep-dispatch-algorithm static.
  void Add(std::span<const int32_t> routed, int64_t top_k, const std::vector<bool>& held);

  int64_t passes() const { return passes_; }
  // [layers] means of the passes; zeros without passes and in layers without experts.
  std::vector<ExpertReads> Mean() const;
  // The fraction of the pairs of a token and an expert that attending ranks compute; 0 without
  // pairs.
  double AttendingRows() const { return rows_ > 0 ? attending_rows_ / rows_ : 0; }

 private:
  int64_t experts_ = 0, passes_ = 0;
  std::vector<ExpertReads> sums_;
  double attending_rows_ = 0, rows_ = 0;
};

// The weights that a step reads, in bytes, and the rates of the ranks in bytes per second.
struct SplitReads {
  double dense = 0;   // attending ranks: all weights but routed and shared experts
  double shared = 0;  // attending ranks: shared experts of all layers
  double attending_expert = 0, other_expert = 0;  // one routed expert
  double attending_rate = 0, other_rate = 0;      // must be positive
  std::vector<ExpertReads> layers;                // layers without experts have none
};

struct SplitBound {
  double attending_bytes = 0, other_bytes = 0;
  // max(attending bytes / rate, other bytes / rate): both kinds of ranks read all the time.
  double seconds = 0;
  // The same for each layer, one after another. The other ranks read while attending ranks read
  // shared and routed experts of the layer. At least `seconds`.
  double in_order = 0;
};

SplitBound BoundOf(const SplitReads& reads);

// The same experts if the attending ranks held all experts of the first `whole` layers with experts
// and none of the others.
SplitReads ByLayers(SplitReads reads, int64_t whole);

}  // namespace switchyard::plan
