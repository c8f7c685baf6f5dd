#include "plan/decode_bound.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard::plan {

std::vector<bool> HeldByAttending(std::span<const int32_t> slots, int64_t layers, int64_t attending,
                                  int64_t experts) {
  std::vector<bool> held(static_cast<size_t>(layers * experts));
  if (layers == 0) return held;
  const int64_t physical = std::ssize(slots) / layers;
  CHECK(std::ssize(slots) == layers * physical && attending <= physical);
  for (int64_t layer = 0; layer < layers; ++layer)
    for (int64_t slot = 0; slot < attending; ++slot)
      if (const int32_t expert = slots[layer * physical + slot]; expert >= 0)
        held[static_cast<size_t>(layer * experts + expert)] = true;
  return held;
}

void ChosenExperts::Add(std::span<const int32_t> routed, int64_t top_k,
                        const std::vector<bool>& held) {
  const int64_t layers = std::ssize(sums_), width = layers * top_k;
  CHECK(std::ssize(held) == layers * experts_ && width > 0 && std::ssize(routed) % width == 0);
  ++passes_;
  std::vector<bool> seen(held.size());
  for (int64_t i = 0; i < std::ssize(routed); ++i) {
    if (routed[i] < 0 || routed[i] >= experts_) continue;
    const int64_t layer = i / top_k % layers;
    const auto at = static_cast<size_t>(layer * experts_ + routed[i]);
    rows_ += 1;
    if (held[at]) attending_rows_ += 1;
    if (seen[at]) continue;
    seen[at] = true;
    ExpertReads& sum = sums_[static_cast<size_t>(layer)];
    (held[at] ? sum.attending : sum.others) += 1;
  }
}

std::vector<ExpertReads> ChosenExperts::Mean() const {
  std::vector<ExpertReads> mean = sums_;
  const double passes = std::max<double>(1, static_cast<double>(passes_));
  for (ExpertReads& layer : mean) {
    layer.attending /= passes;
    layer.others /= passes;
  }
  return mean;
}

SplitBound BoundOf(const SplitReads& r) {
  CHECK(r.attending_rate > 0 && r.other_rate > 0);
  const auto with_experts =
      std::ranges::count_if(r.layers, [](const ExpertReads& layer) { return layer.sum() > 0; });
  const double shared = with_experts > 0 ? r.shared / static_cast<double>(with_experts) : 0;
  SplitBound bound{.attending_bytes = r.dense + r.shared};
  bound.in_order = (r.dense + (with_experts > 0 ? 0 : r.shared)) / r.attending_rate;
  for (const ExpertReads& layer : r.layers) {
    if (layer.sum() <= 0) continue;
    const double attending = layer.attending * r.attending_expert;
    const double others = layer.others * r.other_expert;
    bound.attending_bytes += attending;
    bound.other_bytes += others;
    bound.in_order += std::max((attending + shared) / r.attending_rate, others / r.other_rate);
  }
  bound.seconds =
      std::max(bound.attending_bytes / r.attending_rate, bound.other_bytes / r.other_rate);
  return bound;
}

SplitReads ByLayers(SplitReads reads, int64_t whole) {
  for (ExpertReads& layer : reads.layers) {
    if (layer.sum() <= 0) continue;
    layer = whole > 0 ? ExpertReads{.attending = layer.sum()} : ExpertReads{.others = layer.sum()};
    --whole;
  }
  return reads;
}

}  // namespace switchyard::plan
