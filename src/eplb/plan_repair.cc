// Implements RepairPlan.
#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/check.h"
#include "eplb/layer_plan.h"

namespace switchyard {
namespace {

// The expert with the highest load per replica among those that can have another replica; −1: none.
int32_t MostLoadedReplicable(const LayerPlan& plan) {
  int32_t best = -1;
  double most = -1;
  const auto per_replica = plan.per_replica();
  for (int32_t e = 0; e < plan.experts(); ++e)
    if (per_replica[e] > most && plan.count(e) < plan.bins()) {
      best = e;
      most = per_replica[e];
    }
  return best;
}

// The replicated expert, other than `but`, whose load per replica would be lowest if it lost one
// replica; −1: none.
int32_t LeastLoadedReplicated(const LayerPlan& plan, int32_t but) {
  int32_t best = -1;
  double least = std::numeric_limits<double>::infinity();
  const auto after = plan.with_one_less();
  for (int32_t e = 0; e < plan.experts(); ++e)
    if (after[e] < least && e != but) {
      best = e;
      least = after[e];
    }
  return best;
}

// Connected components of bins that share experts, directly or through other bins.
class Components {
 public:
  explicit Components(const LayerPlan& plan) : of_(plan.bins()), first_(plan.experts()) {}

  // [bins] component ids. Recomputed by a search at every kStale-th call. Between searches, OnPut
  // merges components when experts are added. Removed experts are ignored until the next search.
  const std::vector<int>& Of(const LayerPlan& plan) {
    if (calls_++ % kStale == 0) Find(plan);
    return of_;
  }
  // Records that a bin of component `a` and a bin of component `b` now share an expert.
  void OnPut(int a, int b) {
    if (a != b) std::ranges::replace(of_, a, b);
  }

 private:
  static constexpr int kStale = 8;  // calls of Of between two searches; a search is slow

  void Find(const LayerPlan& plan) {
    std::iota(of_.begin(), of_.end(), 0);
    std::ranges::fill(first_, -1);
    const auto root = [&](int bin) {
      while (of_[bin] != bin) bin = of_[bin] = of_[of_[bin]];
      return bin;
    };
    for (size_t p = 0; p < plan.map().size(); ++p) {
      const int32_t expert = plan.map()[p];
      if (expert < 0 || plan.count(expert) < 2) continue;
      const int bin = plan.bin_of(static_cast<int>(p));
      if (first_[expert] < 0) first_[expert] = bin;
      of_[root(bin)] = root(first_[expert]);
    }
    for (int bin = 0; bin < plan.bins(); ++bin) of_[bin] = root(bin);
  }

  std::vector<int> of_;     // [bins]
  std::vector<int> first_;  // [experts] a bin that holds the expert
  int calls_ = 0;
};

// Puts `expert` into one of the slots of expert `old` (−1: into an empty slot), on a bin that does
// not hold `expert`. Prefers bins outside the components of the bins that hold `expert`, then the
// lightest bin. Returns false if there is no such slot.
bool Replace(int32_t old, int32_t expert, Components* components, LayerPlan* plan) {
  const std::vector<int>& component = components->Of(*plan);
  std::vector<uint8_t> reached(plan->bins(), 0), holds(plan->bins(), 0);
  int holder = -1;
  for (int p = plan->first_slot(expert); p >= 0; p = plan->next_slot(p)) {
    holder = plan->bin_of(p);
    reached[component[holder]] = holds[holder] = 1;
  }
  int best = -1, place = -1;
  const auto key = [&](int bin, int p) {
    return std::tuple(reached[component[bin]], plan->bin_load(bin), p);
  };
  const auto consider = [&](int p) {
    const int bin = plan->bin_of(p);
    if (bin < 0 || holds[bin] || (best >= 0 && key(bin, p) >= key(best, place))) return;
    best = bin;
    place = p;
  };
  if (old >= 0) {
    for (int p = plan->first_slot(old); p >= 0; p = plan->next_slot(p)) consider(p);
  } else {
    for (int p = 0; p < static_cast<int>(plan->map().size()); ++p)
      if (plan->map()[p] < 0) consider(p);
  }
  if (best < 0) return false;
  plan->Put(best, place, expert);
  if (holder >= 0) components->OnPut(component[best], component[holder]);
  return true;
}

// Places experts without a slot, heaviest first, into empty slots. If there are none, they replace
// replicas of other experts.
void PlaceMissingExperts(Components* components, LayerPlan* plan) {
  while (true) {
    int32_t unplaced = -1;
    for (int32_t e = 0; e < plan->experts(); ++e)
      if (plan->count(e) == 0 && (unplaced < 0 || plan->load(e) > plan->load(unplaced)))
        unplaced = e;
    if (unplaced < 0) return;
    const bool placed = Replace(-1, unplaced, components, plan) ||
                        Replace(LeastLoadedReplicated(*plan, unplaced), unplaced, components, plan);
    CHECK(placed);  // ValidateTopology has ensured enough slots for all experts
  }
}

// Each empty slot gets the hottest expert that its bin does not hold yet.
void FillEmptySlots(LayerPlan* plan) {
  for (int bin = 0; bin < plan->bins(); ++bin)
    for (int p = plan->slots(bin).begin; p < plan->slots(bin).end; ++p) {
      if (plan->map()[p] >= 0) continue;
      int32_t best = -1;
      for (int32_t e = 0; e < plan->experts(); ++e)
        if (!plan->Holds(bin, e) && (best < 0 || plan->PerReplica(e) > plan->PerReplica(best)))
          best = e;
      plan->Put(bin, p, best);
    }
}

}  // namespace

void RepairPlan(double slack, int budget, LayerPlan* plan) {
  Components components(*plan);
  PlaceMissingExperts(&components, plan);
  FillEmptySlots(plan);
  for (; budget > 0; --budget) {
    const int32_t hot = MostLoadedReplicable(*plan);
    const int32_t cold = hot < 0 ? -1 : LeastLoadedReplicated(*plan, hot);
    if (cold < 0) return;
    if (plan->PerReplica(hot) <= (1 + slack) * plan->with_one_less()[cold]) return;
    if (!Replace(cold, hot, &components, plan)) return;
  }
}

}  // namespace switchyard
