#include <algorithm>
#include <numeric>
#include <span>

#include "core/error.h"
#include "eplb/layer_plan.h"
#include "eplb/planner.h"

namespace switchyard {
namespace {

struct Packing {
  std::vector<int> pack, place;  // [items] the item's pack, and its index in the pack
};

// Packs items in order of decreasing weight, each into the lightest pack that is not full. Ties
// between packs go to the lower index. Ties between items are in the order of libstdc++'s
// std::sort, as in the reference (torch.sort on CPUs). This order affects the numbering of an
// expert's replicas, but not the load.
Packing PackEvenly(std::span<const float> weights, int packs) {
  const int items = static_cast<int>(weights.size()), capacity = items / packs;
  Packing packing{std::vector<int>(items), std::vector<int>(items)};
  if (capacity == 1) {
    std::iota(packing.pack.begin(), packing.pack.end(), 0);
    return packing;
  }
  std::vector<int> order(items), filled(packs, 0);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return weights[a] > weights[b]; });
  std::vector<float> load(packs, 0.0f);
  for (const int item : order) {
    int lightest = -1;
    for (int p = 0; p < packs; ++p)
      if (filled[p] < capacity && (lightest < 0 || load[p] < load[lightest])) lightest = p;
    packing.pack[item] = lightest;
    packing.place[item] = filled[lightest]++;
    load[lightest] += weights[item];
  }
  return packing;
}

struct Replicas {
  std::vector<int> expert, number;  // [physical]
  std::vector<int> count;           // [experts]
};

Replicas Replicate(std::span<const float> load, int physical) {
  const int experts = static_cast<int>(load.size());
  Replicas replicas{std::vector<int>(physical), std::vector<int>(physical, 0),
                    std::vector<int>(experts, 1)};
  std::iota(replicas.expert.begin(), replicas.expert.begin() + experts, 0);
  for (int p = experts; p < physical; ++p) {
    int hottest = 0;
    for (int e = 1; e < experts; ++e)
      if (load[e] / static_cast<float>(replicas.count[e]) >
          load[hottest] / static_cast<float>(replicas.count[hottest]))
        hottest = e;
    replicas.expert[p] = hottest;
    replicas.number[p] = replicas.count[hottest]++;
  }
  return replicas;
}

struct Sizes {
  int physical, groups, nodes, ranks;
};

// Returns [experts]: the expert at each position of an order in which the experts of a node are
// contiguous.
std::vector<int> ExpertsByNode(std::span<const float> load, const Sizes& sizes) {
  const int experts = static_cast<int>(load.size()), group_size = experts / sizes.groups;
  std::vector<float> group_load(sizes.groups, 0.0f);
  for (int e = 0; e < experts; ++e) group_load[e / group_size] += load[e];
  const Packing packing = PackEvenly(group_load, sizes.nodes);
  std::vector<int> at(experts);
  for (int e = 0; e < experts; ++e) {
    const int group = e / group_size;
    const int place = packing.pack[group] * (sizes.groups / sizes.nodes) + packing.place[group];
    at[place * group_size + e % group_size] = e;
  }
  return at;
}

void PlanLayer(std::span<const float> load, const Sizes& sizes, std::span<int32_t> to_logical,
               std::span<int32_t> number) {
  const int per_node = static_cast<int>(load.size()) / sizes.nodes;
  const int node_slots = sizes.physical / sizes.nodes, node_ranks = sizes.ranks / sizes.nodes;
  const std::vector<int> experts = ExpertsByNode(load, sizes);
  for (int node = 0; node < sizes.nodes; ++node) {
    std::vector<float> node_load(per_node);
    for (int i = 0; i < per_node; ++i) node_load[i] = load[experts[node * per_node + i]];
    const Replicas replicas = Replicate(node_load, node_slots);
    std::vector<float> slot_load(node_slots);
    for (int p = 0; p < node_slots; ++p)
      slot_load[p] =
          node_load[replicas.expert[p]] / static_cast<float>(replicas.count[replicas.expert[p]]);
    const Packing packing = PackEvenly(slot_load, node_ranks);
    for (int p = 0; p < node_slots; ++p) {
      const int place =
          node * node_slots + packing.pack[p] * (node_slots / node_ranks) + packing.place[p];
      to_logical[place] = experts[node * per_node + replicas.expert[p]];
      number[place] = replicas.number[p];
    }
  }
}

}  // namespace

DeepSeekPlan PlanDeepSeek(const LoadHistory& history, const RankTopology& topology, int physical,
                          bool hierarchical) {
  const Sizes sizes{physical, hierarchical ? topology.groups : 1, hierarchical ? topology.nodes : 1,
                    topology.ranks};
  if (physical % sizes.ranks != 0)
    throw Invalid(
        "deepseek: {} slots are not divisible by {} ranks; change the number of redundant experts, "
        "or use --eplb-algorithm yard",
        physical, sizes.ranks);
  if (physical < history.experts)
    throw Invalid("deepseek: {} slots for {} experts: want at least one for each", physical,
                  history.experts);
  if (sizes.groups % sizes.nodes != 0 || history.experts % sizes.groups != 0)
    throw Invalid("deepseek_hierarchical: {} experts in {} groups are not divisible by {} nodes",
                  history.experts, sizes.groups, sizes.nodes);
  if (sizes.ranks % sizes.nodes != 0)
    throw Invalid("deepseek_hierarchical: {} ranks are not divisible by {} nodes", sizes.ranks,
                  sizes.nodes);
  DeepSeekPlan plan{Placement(history.layers, physical, history.experts), {}};
  plan.replica.resize(plan.placement.physical_to_logical.size());
  for (int layer = 0; layer < history.layers; ++layer) {
    std::vector<int64_t> sum(history.experts, 0);
    for (int step = 0; step < history.steps; ++step)
      for (int e = 0; e < history.experts; ++e) sum[e] += history.At(step, layer)[e];
    const std::vector<float> load(sum.begin(), sum.end());
    PlanLayer(load, sizes, plan.placement.Layer(layer),
              std::span(plan.replica).subspan(static_cast<size_t>(layer) * physical, physical));
  }
  return plan;
}

namespace {

constexpr int kMaxSwaps = 64;

Placement PlanUneven(const LoadHistory& history, const std::vector<RankSlots>& living,
                     int physical) {
  Placement placement(history.layers, physical, history.experts);
  for (int layer = 0; layer < history.layers; ++layer) {
    std::vector<double> load(history.experts, 0.0);
    for (int step = 0; step < history.steps; ++step)
      for (int e = 0; e < history.experts; ++e) load[e] += history.At(step, layer)[e];
    LayerPlan plan(living, physical, load);
    PlanFromScratch(&plan);
    plan.ImproveBySwaps(/*tolerance=*/0, kMaxSwaps);
    std::ranges::copy(plan.map(), placement.Layer(layer).begin());
  }
  return placement;
}

}  // namespace

Placement PlanElastic(const LoadHistory& history, const RankTopology& topology, int physical) {
  ValidateTopology(topology, physical, history.experts);
  const std::vector<RankSlots> living = LivingSlots(topology, physical);
  if (physical % topology.ranks != 0) return PlanUneven(history, living, physical);
  if (topology.NumAlive() == topology.ranks) {
    const bool by_node =
        topology.groups % topology.nodes == 0 && history.experts % topology.groups == 0;
    return PlanDeepSeek(history, topology, physical, by_node).placement;
  }
  const int alive = topology.NumAlive(), per_rank = physical / topology.ranks;
  const Placement dense =
      PlanDeepSeek(history, {.ranks = alive}, per_rank * alive, /*hierarchical=*/false).placement;
  Placement placement(history.layers, physical, history.experts);
  for (int layer = 0; layer < history.layers; ++layer)
    for (int i = 0; i < alive; ++i)
      std::ranges::copy(dense.Layer(layer).subspan(static_cast<size_t>(i) * per_rank, per_rank),
                        placement.Layer(layer).begin() + living[i].begin);
  return placement;
}

}  // namespace switchyard
