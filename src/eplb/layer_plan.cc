#include "eplb/layer_plan.h"

#include <algorithm>
#include <limits>

namespace switchyard {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

LayerPlan::LayerPlan(const std::vector<RankSlots>& bins, int physical, std::span<const double> load)
    : bins_(&bins),
      load_(load.begin(), load.end()),
      map_(physical, -1),
      first_slot_(load.size(), -1),
      next_slot_(physical, -1),
      count_(load.size(), 0),
      per_replica_(load_),
      with_one_less_(load.size(), kInfinite),
      solo_(physical, kInfinite),
      bin_load_(bins.size(), 0.0),
      bin_of_(physical, -1) {
  for (int bin = 0; bin < this->bins(); ++bin)
    for (int p = slots(bin).begin; p < slots(bin).end; ++p) bin_of_[p] = bin;
  double total = 0;
  for (const double tokens : load_) total += tokens;
  mean_ = total / static_cast<double>(bins.size());
}

void LayerPlan::Assign(std::span<const int32_t> map) {
  std::ranges::fill(map_, -1);
  std::ranges::fill(first_slot_, -1);
  std::ranges::fill(count_, 0);
  std::ranges::fill(bin_load_, 0.0);
  for (int bin = 0; bin < bins(); ++bin)
    for (int p = slots(bin).begin; p < slots(bin).end; ++p)
      // A second slot for the same expert on one rank would leave dispatch no additional choice, so
      // the slot becomes empty.
      if (map[p] >= 0 && map[p] < experts() && !Holds(bin, map[p])) {
        map_[p] = map[p];
        ++count_[map[p]];
        Link(map[p], p);
      }
  for (int32_t e = 0; e < experts(); ++e) Count(e, 0);
  for (size_t p = 0; p < map_.size(); ++p)
    if (map_[p] >= 0) bin_load_[bin_of_[p]] += PerReplica(map_[p]);
}

void LayerPlan::Count(int32_t expert, int by) {
  const int32_t count = count_[expert] += by;
  per_replica_[expert] = load_[expert] / std::max(count, 1);
  with_one_less_[expert] = count > 1 ? load_[expert] / (count - 1) : kInfinite;
}

void LayerPlan::Link(int32_t expert, int place) {
  next_slot_[place] = first_slot_[expert];
  first_slot_[expert] = place;
}

void LayerPlan::Unlink(int32_t expert, int place) {
  int* at = &first_slot_[expert];
  while (*at != place) at = &next_slot_[*at];
  *at = next_slot_[place];
}

void LayerPlan::Put(int bin, int place, int32_t expert) {
  const auto recount = [&](int32_t changed, int by) {
    const double before = PerReplica(changed);
    Count(changed, by);
    const double difference = PerReplica(changed) - before;
    for (int p = first_slot_[changed]; p >= 0; p = next_slot_[p])
      bin_load_[bin_of_[p]] += difference;
  };
  const int32_t old = map_[place];
  if (old >= 0) {
    bin_load_[bin] -= PerReplica(old);
    Unlink(old, place);
    recount(old, -1);
  }
  map_[place] = expert;
  if (expert < 0) return;
  recount(expert, +1);
  Link(expert, place);
  bin_load_[bin] += PerReplica(expert);
}

bool LayerPlan::Holds(int bin, int32_t expert) const {
  const auto begin = map_.begin() + slots(bin).begin, end = map_.begin() + slots(bin).end;
  return std::find(begin, end, expert) != end;
}

int LayerPlan::Heaviest() const {
  return static_cast<int>(std::ranges::max_element(bin_load_) - bin_load_.begin());
}

bool LayerPlan::SwapFromHeaviest(int heavy) {
  double best = 1e-9 * mean_ * mean_;
  int from = -1, to = -1, to_bin = -1;
  const auto try_bin = [&](int bin) {
    const double gap = bin_load_[heavy] - bin_load_[bin];
    // A swap of experts whose loads differ by half of the gap has the largest gain, gap² / 2.
    if (bin == heavy || gap * gap / 2 <= best) return;
    for (int i = slots(heavy).begin; i < slots(heavy).end; ++i) {
      if (solo_[i] == kInfinite) continue;
      for (int j = slots(bin).begin; j < slots(bin).end; ++j) {
        // −infinite if expert j has replicas, so that there is no gain.
        const double change = solo_[i] - solo_[j];
        const double gain = 2 * change * (gap - change);  // reduction of the sum of squares
        if (gain <= best) continue;
        best = gain;
        from = i, to = j, to_bin = bin;
      }
    }
  };
  // Tries the bin with the largest possible gain first, which prunes most others.
  try_bin(static_cast<int>(std::ranges::min_element(bin_load_) - bin_load_.begin()));
  for (int bin = 0; bin < bins(); ++bin) try_bin(bin);
  if (to_bin < 0) return false;
  const double change = solo_[from] - solo_[to];
  first_slot_[map_[from]] = to;  // each of the two experts has one slot
  first_slot_[map_[to]] = from;
  std::swap(map_[from], map_[to]);
  std::swap(solo_[from], solo_[to]);
  bin_load_[heavy] -= change;
  bin_load_[to_bin] += change;
  return true;
}

int LayerPlan::ImproveBySwaps(double tolerance, int budget) {
  for (size_t p = 0; p < map_.size(); ++p)
    solo_[p] = map_[p] >= 0 && count_[map_[p]] == 1 ? load_[map_[p]] : kInfinite;
  int swaps = 0;
  for (; swaps < budget; ++swaps) {
    const int heavy = Heaviest();
    if (bin_load_[heavy] <= mean_ * (1 + tolerance) || !SwapFromHeaviest(heavy)) break;
  }
  return swaps;
}

}  // namespace switchyard
