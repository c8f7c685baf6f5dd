#include "eplb/types.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {

LoadHistory LoadHistory::Steps(int begin, int end) const {
  CHECK(0 <= begin && begin <= end && end <= steps);
  const size_t row = static_cast<size_t>(layers) * experts;
  return {end - begin,
          layers,
          experts,
          {counts.begin() + static_cast<std::ptrdiff_t>(begin * row),
           counts.begin() + static_cast<std::ptrdiff_t>(end * row)},
          passes};
}

int RankTopology::NumAlive() const {
  if (active.empty()) return ranks;
  return static_cast<int>(std::ranges::count_if(active, [](uint8_t alive) { return alive != 0; }));
}

bool RankTopology::EqualRanks() const {
  return slots.empty() && std::ranges::all_of(costs, [&](const RankCost& cost) {
           return cost == costs.front() && cost.expert == 0;
         });
}

bool RankTopology::HasMoveCosts() const {
  return std::ranges::any_of(costs, [](const RankCost& cost) { return cost.move > 0; });
}

Placement::Placement(int layers, int physical, int logical)
    : layers(layers),
      physical(physical),
      logical(logical),
      physical_to_logical(static_cast<size_t>(layers) * physical, -1) {}

Placement Placement::Trivial(int layers, int physical, int logical) {
  Placement placement(layers, physical, logical);
  for (int layer = 0; layer < layers; ++layer)
    for (int p = 0; p < physical; ++p) placement.Layer(layer)[p] = p % logical;
  return placement;
}

ExpertPlacement Placement::ToExpertPlacement(int layer) const {
  const std::span<const int32_t> row = Layer(layer);
  std::vector<int32_t> map(row.begin(), row.end());
  for (int p = 0; p < physical; ++p)
    if (map[p] < 0) map[p] = p % logical;
  return ExpertPlacement(logical, std::move(map));
}

std::vector<RankSlots> LivingSlots(const RankTopology& topology, int physical) {
  std::vector<RankSlots> living;
  for (int rank = 0; rank < topology.ranks; ++rank) {
    if (!topology.Alive(rank)) continue;
    const Range range = ExpertsOfRank(physical, topology.ranks, rank, topology.slots);
    living.push_back(
        {rank, topology.NodeOf(rank), static_cast<int>(range.begin), static_cast<int>(range.end)});
  }
  return living;
}

namespace {

void ValidateUnequalRanks(const RankTopology& topology, int physical) {
  const auto ranks = static_cast<size_t>(topology.ranks);
  if (!topology.slots.empty() && topology.slots.size() != ranks)
    throw Invalid("numbers of slots of {} ranks are given, but there are {}", topology.slots.size(),
                  ranks);
  int64_t sum = 0;
  for (const int32_t slots : topology.slots) {
    if (slots < 1) throw Invalid("a rank has {} expert slots; want at least 1", slots);
    sum += slots;
  }
  if (!topology.slots.empty() && sum != physical)
    throw Invalid("the ranks have {} expert slots together; want {}, one for each physical expert",
                  sum, physical);
  if (topology.sources < 0 || topology.sources > topology.ranks)
    throw Invalid("{} of {} ranks have tokens: want 0 (all) or a number of ranks", topology.sources,
                  ranks);
  if (!topology.costs.empty() && topology.costs.size() != ranks)
    throw Invalid("costs of {} ranks are given, but there are {}", topology.costs.size(), ranks);
  const auto is_time = [](double value) { return value >= 0 && value < 1e12; };
  for (const auto& [row, expert, move] : topology.costs)
    if (!(row > 0 && is_time(row) && is_time(expert) && is_time(move)))
      throw Invalid(
          "a rank with a cost of {} for a row, {} for an expert and {} for its move: want positive "
          "numbers",
          row, expert, move);
}

}  // namespace

void ValidateTopology(const RankTopology& topology, int physical, int logical) {
  const int ranks = topology.ranks, nodes = topology.nodes, groups = topology.groups;
  const std::vector<uint8_t>& active = topology.active;
  if (ranks < 1 || nodes < 1 || groups < 1 || logical < 1 || physical < 1)
    throw Invalid("{} ranks, {} nodes, {} expert groups, {} experts and {} slots: want at least 1",
                  ranks, nodes, groups, logical, physical);
  if (ranks % nodes != 0) throw Invalid("{} ranks are not divisible by {} nodes", ranks, nodes);
  if (!active.empty() && active.size() != static_cast<size_t>(ranks))
    throw Invalid("`active` has {} entries for {} ranks", active.size(), ranks);
  ValidateUnequalRanks(topology, physical);
  if (topology.NumAlive() == 0) throw Invalid("no rank is alive to hold experts");
  int places = 0;
  for (const RankSlots& slots : LivingSlots(topology, physical)) {
    places += slots.size();
    if (slots.size() > logical)
      throw Invalid("rank {} has {} slots for {} experts: it would hold an expert twice",
                    slots.rank, slots.size(), logical);
  }
  if (places < logical)
    throw Invalid("{} experts do not fit; {} of {} ranks are alive and have {} slots", logical,
                  topology.NumAlive(), ranks, places);
}

void ValidatePlacement(const Placement& placement, const RankTopology& topology) {
  const size_t want = static_cast<size_t>(placement.layers) * placement.physical;
  if (placement.physical_to_logical.size() != want)
    throw Invalid("a placement of {} layers and {} slots has {} entries", placement.layers,
                  placement.physical, placement.physical_to_logical.size());
  for (int layer = 0; layer < placement.layers; ++layer) {
    std::vector<bool> placed(placement.logical, false);
    const auto row = placement.Layer(layer);
    for (const RankSlots& slots : LivingSlots(topology, placement.physical))
      for (int p = slots.begin; p < slots.end; ++p) {
        if (row[p] < 0 || row[p] >= placement.logical)
          throw Invalid("layer {}: slot {} of rank {} holds expert {}; the model has {}", layer, p,
                        slots.rank, row[p], placement.logical);
        placed[row[p]] = true;
      }
    const auto missing = std::ranges::find(placed, false);
    if (missing != placed.end())
      throw Invalid("layer {}: expert {} has no slot on a living rank", layer,
                    missing - placed.begin());
  }
}

Moves CountMoves(std::span<const int32_t> previous, std::span<const int32_t> next,
                 const RankTopology& topology, int num_logical) {
  const std::vector<RankSlots> living = LivingSlots(topology, static_cast<int>(next.size()));
  std::vector<uint8_t> on_node(static_cast<size_t>(topology.nodes) * num_logical, 0);
  for (const RankSlots& slots : living)
    for (int p = slots.begin; p < slots.end; ++p)
      if (previous[p] >= 0) on_node[slots.node * num_logical + previous[p]] = 1;
  Moves moves;
  for (const RankSlots& slots : living) {
    const int64_t before_rank = moves.total();
    const auto held = previous.subspan(slots.begin, slots.size());
    for (int p = slots.begin; p < slots.end; ++p) {
      if (next[p] < 0 || std::ranges::find(held, next[p]) != held.end()) continue;
      // If an earlier slot of this rank gets the same expert, the expert is received only once.
      const auto before = next.subspan(slots.begin, p - slots.begin);
      if (std::ranges::find(before, next[p]) != before.end()) continue;
      ++(on_node[slots.node * num_logical + next[p]] ? moves.same_node : moves.other_node);
    }
    const auto received = static_cast<double>(moves.total() - before_rank);
    moves.time = std::max(moves.time, received * topology.CostOf(slots.rank).move);
  }
  return moves;
}

Moves CountMoves(const Placement& previous, const Placement& next, const RankTopology& topology) {
  CHECK(previous.layers == next.layers && previous.physical == next.physical);
  Moves sum;
  for (int layer = 0; layer < next.layers; ++layer) {
    const Moves moves =
        CountMoves(previous.Layer(layer), next.Layer(layer), topology, next.logical);
    sum.same_node += moves.same_node;
    sum.other_node += moves.other_node;
  }
  return sum;
}

}  // namespace switchyard
