// Implements PlanFromScratch.
#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "eplb/layer_plan.h"

namespace switchyard {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// [experts] number of replicas, at most one for each bin.
std::vector<int> ReplicateHottest(const LayerPlan& plan, int places) {
  std::vector<int> counts(plan.experts(), 1);
  using Entry = std::pair<double, int32_t>;  // load per replica, −expert (ties go to the lower id)
  std::vector<Entry> entries;
  for (int32_t e = 0; e < plan.experts(); ++e) entries.emplace_back(plan.load(e), -e);
  std::priority_queue<Entry> hottest(entries.begin(), entries.end());
  for (int left = places - plan.experts(); left > 0;) {
    CHECK(!hottest.empty());
    const int32_t expert = -hottest.top().second;
    hottest.pop();
    if (counts[expert] == plan.bins()) continue;
    hottest.emplace(plan.load(expert) / ++counts[expert], -expert);
    --left;
  }
  return counts;
}

// Fills bins slot by slot, and keeps track of components: sets of bins that are connected by shared
// experts.
class Filler {
 public:
  explicit Filler(LayerPlan* plan)
      : map_(plan->map().begin(), plan->map().end()),
        plan_(plan),
        next_(plan->bins()),
        load_(plan->bins(), 0.0),
        unit_(plan->mean() * plan->bins() + 1),
        component_(plan->bins()),
        node_(plan->bins()),
        free_(plan->bins()),
        reached_(plan->bins()),
        on_node_(plan->slots(plan->bins() - 1).node + 1),
        key_(plan->bins()) {
    for (int bin = 0; bin < plan->bins(); ++bin) {
      next_[bin] = plan->slots(bin).begin;
      node_[bin] = plan->slots(bin).node;
      free_[bin] = plan->slots(bin).size();
    }
    std::iota(component_.begin(), component_.end(), 0);
  }

  // Places the replicas of an expert on different bins. Criteria in order: the most free slots (so
  // that enough bins remain for the next expert), a component that the expert has not reached, a
  // node without the expert, the least load. One key per bin combines all criteria. In this key,
  // `unit_` is larger than any load, and the criteria before the load are multiples of it.
  void PlaceReplicas(int32_t expert, int count) {
    const double share = plan_->load(expert) / count;
    for (size_t bin = 0; bin < key_.size(); ++bin)
      key_[bin] = free_[bin] > 0 ? load_[bin] - 4 * unit_ * free_[bin] : kInfinite;
    std::ranges::fill(reached_, 0);
    std::ranges::fill(on_node_, 0);
    int joined = -1;
    for (int i = 0; i < count; ++i) {
      const auto least = std::ranges::min_element(key_);
      CHECK(*least < kInfinite);
      const int best = static_cast<int>(least - key_.begin());
      Put(best, expert, share);
      *least = kInfinite;  // at most one replica on a bin
      const int component = component_[best], node = node_[best];
      if (!reached_[component]) Penalize(component_, component, 2 * unit_);
      if (!on_node_[node]) Penalize(node_, node, unit_);
      reached_[component] = on_node_[node] = 1;
      joined = joined < 0 ? component : joined;
    }
    for (int& component : component_)
      if (reached_[component]) component = joined;
  }

  // Puts each of `experts`, heaviest first, on the lightest bin with a free slot.
  void PlaceUnreplicated(std::span<const int32_t> experts) {
    using Bin = std::pair<double, int>;
    std::priority_queue<Bin, std::vector<Bin>, std::greater<>> lightest;
    for (int bin = 0; bin < plan_->bins(); ++bin)
      if (free_[bin] > 0) lightest.emplace(load_[bin], bin);
    for (const int32_t expert : experts) {
      CHECK(!lightest.empty());
      const int bin = lightest.top().second;
      lightest.pop();
      Put(bin, expert, plan_->load(expert));
      if (free_[bin] > 0) lightest.emplace(load_[bin], bin);
    }
  }

  const std::vector<int32_t>& map() const { return map_; }

 private:
  // Adds `penalty` to the bins whose entry in `of` [bins] is `number`.
  void Penalize(const std::vector<int>& of, int number, double penalty) {
    for (size_t bin = 0; bin < key_.size(); ++bin)
      if (of[bin] == number) key_[bin] += penalty;
  }
  void Put(int bin, int32_t expert, double load) {
    map_[next_[bin]++] = expert;
    --free_[bin];
    load_[bin] += load;
  }

  std::vector<int32_t> map_;
  const LayerPlan* plan_;
  std::vector<int> next_;     // [bins] first free slot
  std::vector<double> load_;  // [bins]
  double unit_;
  std::vector<int> component_, node_, free_;  // [bins] free_: number of free slots
  // State of the current expert.
  std::vector<uint8_t> reached_, on_node_;  // [components], [nodes]
  std::vector<double> key_;                 // [bins] the minimum is the best
};

}  // namespace

void PlanFromScratch(LayerPlan* plan) {
  int places = 0;
  for (int bin = 0; bin < plan->bins(); ++bin) places += plan->slots(bin).size();
  const std::vector<int> counts = ReplicateHottest(*plan, places);
  // Replicated experts first, then by decreasing load per replica, then by id.
  using Key = std::tuple<bool, double, int32_t>;
  std::vector<Key> keys;
  for (int32_t e = 0; e < plan->experts(); ++e)
    keys.emplace_back(counts[e] == 1, -plan->load(e) / counts[e], e);
  std::ranges::sort(keys);
  std::vector<int32_t> order;
  for (const Key& key : keys) order.push_back(std::get<2>(key));
  const auto single = std::ranges::find(order, 1, [&](int32_t e) { return counts[e]; });
  Filler filler(plan);
  for (const int32_t expert : std::span(order.begin(), single))
    filler.PlaceReplicas(expert, counts[expert]);
  filler.PlaceUnreplicated(std::span(single, order.end()));
  plan->Assign(filler.map());
}

}  // namespace switchyard
