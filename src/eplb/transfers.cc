#include "eplb/transfers.h"

#include <algorithm>
#include <map>

#include "core/check.h"

namespace switchyard {
namespace {

// Selects the sender of each transfer, before transfers are divided into batches.
class Matcher {
 public:
  Matcher(std::span<const int32_t> previous, const RankTopology& topology)
      : topology_(topology), sends_(topology.ranks, 0) {
    for (const RankSlots& slots : LivingSlots(topology, static_cast<int>(previous.size())))
      for (int p = slots.begin; p < slots.end; ++p)
        if (previous[p] >= 0) holders_[previous[p]].push_back({slots.rank, p});
  }

  // The slot that sends `expert`, on another rank. Rank −1: no rank holds the expert.
  struct Holder {
    int rank = -1, place = -1;
  };
  Holder SenderFor(int32_t expert, int to_rank) {
    const auto found = holders_.find(expert);
    if (found == holders_.end()) return {};
    const int node = topology_.NodeOf(to_rank);
    const auto cost = [&](const Holder& h) {
      return std::pair(topology_.NodeOf(h.rank) != node, sends_[h.rank]);
    };
    const Holder& chosen = *std::ranges::min_element(found->second, {}, cost);
    ++sends_[chosen.rank];
    return chosen;
  }

 private:
  const RankTopology& topology_;
  std::map<int32_t, std::vector<Holder>> holders_;  // ascending by place
  std::vector<int> sends_;  // [ranks] number of transfers that each rank sends so far
};

// Puts each transfer into the first batch in which both ranks are free. This is a greedy edge
// coloring of the graph of ranks, so the number of batches is less than twice the number of
// transfers of the busiest rank.
std::vector<std::vector<Transfer>> ColorIntoBatches(const std::vector<Transfer>& all, int ranks) {
  std::vector<std::vector<Transfer>> batches;
  std::vector<std::vector<int>> peer;      // [batches][ranks] the peer of each rank; −1: none yet
  std::vector<std::vector<uint8_t>> sent;  // [batches][ranks] whether the rank sends in this batch
  for (const Transfer& t : all) {
    size_t b = 0;
    for (; b < batches.size(); ++b) {
      const bool free = peer[b][t.from_rank] < 0 && peer[b][t.to_rank] < 0;
      const bool same = peer[b][t.from_rank] == t.to_rank;
      if (free || (same && !sent[b][t.from_rank])) break;
    }
    if (b == batches.size()) {
      batches.emplace_back();
      peer.emplace_back(ranks, -1);
      sent.emplace_back(ranks, 0);
    }
    batches[b].push_back(t);
    peer[b][t.from_rank] = t.to_rank;
    peer[b][t.to_rank] = t.from_rank;
    sent[b][t.from_rank] = 1;
  }
  return batches;
}

}  // namespace

const char* Name(FillFrom from) {
  switch (from) {
    case FillFrom::kUnchanged:
      return "unchanged";
    case FillFrom::kSameRank:
      return "same_rank";
    case FillFrom::kFreeRider:
      return "free_rider";
    case FillFrom::kSameNode:
      return "same_node";
    case FillFrom::kOtherNode:
      return "other_node";
    case FillFrom::kCheckpoint:
      return "stored";
  }
  return "";
}

LayerTransfers PlanTransfers(std::span<const int32_t> previous, std::span<const int32_t> next,
                             const RankTopology& topology) {
  CHECK_EQ(previous.size(), next.size());
  LayerTransfers plan{.fills = std::vector<FillFrom>(next.size(), FillFrom::kUnchanged)};
  Matcher matcher(previous, topology);
  std::vector<Transfer> transfers;
  for (const RankSlots& slots : LivingSlots(topology, static_cast<int>(next.size()))) {
    const auto held = previous.subspan(slots.begin, slots.size());
    for (int p = slots.begin; p < slots.end; ++p) {
      const int32_t expert = next[p];
      if (previous[p] == expert) continue;
      const auto earlier = next.subspan(slots.begin, p - slots.begin);
      if (std::ranges::find(held, expert) != held.end()) {
        plan.fills[p] = FillFrom::kSameRank;
      } else if (std::ranges::find(earlier, expert) != earlier.end()) {
        plan.fills[p] = FillFrom::kFreeRider;
      } else if (const auto from = matcher.SenderFor(expert, slots.rank); from.rank < 0) {
        plan.fills[p] = FillFrom::kCheckpoint;
      } else {
        plan.fills[p] =
            topology.NodeOf(from.rank) == slots.node ? FillFrom::kSameNode : FillFrom::kOtherNode;
        transfers.push_back({expert, from.rank, slots.rank, from.place, p});
      }
    }
  }
  plan.batches = ColorIntoBatches(transfers, topology.ranks);
  return plan;
}

std::vector<int64_t> CountFills(const Placement& previous, const Placement& next,
                                const RankTopology& topology) {
  CHECK(previous.layers == next.layers && previous.physical == next.physical);
  std::vector<int64_t> counts(kNumFillFrom, 0);
  for (int layer = 0; layer < next.layers; ++layer)
    for (const FillFrom from :
         PlanTransfers(previous.Layer(layer), next.Layer(layer), topology).fills)
      ++counts[static_cast<size_t>(from)];
  return counts;
}

}  // namespace switchyard
