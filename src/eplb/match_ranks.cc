#include <algorithm>
#include <numeric>

#include "eplb/layer_plan.h"

namespace switchyard {
namespace {

// [bins, bins] cost of moving to rank b the experts that the plan assigns to rank a. Costs are
// relative to a rank b that holds no expert, whose cost is the same for all b. So they are at most
// 0.
class Costs {
 public:
  Costs(std::span<const int32_t> previous, const std::vector<RankSlots>& bins, int nodes,
        int num_logical, double node_price, std::span<const int32_t> next)
      : size_(bins.size()), cost_(size_ * size_) {
    // An expert costs node_price on ranks of nodes without the expert, 1 on other ranks of a node
    // with a holder, and 0 on its holders.
    struct Holder {
      size_t bin;
      int next;  // next holder of the same expert; −1: none
    };
    std::vector<Holder> holders;
    std::vector<int> last(num_logical, -1);  // [experts] index into holders
    for (size_t b = 0; b < size_; ++b)
      for (int p = bins[b].begin; p < bins[b].end; ++p) {
        const int32_t expert = previous[p];
        if (expert < 0 || (last[expert] >= 0 && holders[last[expert]].bin == b)) continue;
        holders.push_back({b, last[expert]});
        last[expert] = static_cast<int>(holders.size()) - 1;
      }
    std::vector<size_t> node_begin(nodes + 1, 0);  // bins ascend by node
    for (const RankSlots& bin : bins) ++node_begin[bin.node + 1];
    std::partial_sum(node_begin.begin(), node_begin.end(), node_begin.begin());
    for (size_t a = 0; a < size_; ++a) {
      double* const cost = cost_.data() + a * size_;
      for (int p = bins[a].begin; p < bins[a].end; ++p) {
        int node = -1;
        for (int i = last[next[p]]; i >= 0; i = holders[i].next) {
          cost[holders[i].bin] -= 1;
          if (bins[holders[i].bin].node == node) continue;
          node = bins[holders[i].bin].node;
          for (size_t b = node_begin[node]; b < node_begin[node + 1]; ++b)
            cost[b] -= node_price - 1;
        }
      }
    }
  }
  double operator()(size_t a, size_t b) const { return cost_[a * size_ + b]; }

 private:
  size_t size_;
  std::vector<double> cost_;
};

// Returns [bins]: at index a, the rank that gets the experts that the plan assigns to rank a.
std::vector<size_t> Match(const Costs& cost, const std::vector<RankSlots>& bins) {
  const size_t n = bins.size();
  std::vector<size_t> rank_of(n);
  std::vector<bool> taken(n, false);
  std::vector<double> now(n);  // [bins] cost of the experts of rank a on the rank matched to a
  for (size_t a = 0; a < n; ++a) {
    size_t best = n;
    for (size_t b = 0; b < n; ++b)
      if (!taken[b] && bins[a].size() == bins[b].size() &&
          (best == n || cost(a, b) < cost(a, best)))
        best = b;
    rank_of[a] = best;
    now[a] = cost(a, best);
    taken[best] = true;
  }
  for (bool better = true; better;) {
    better = false;
    for (size_t a = 0; a < n; ++a)
      for (size_t b = a + 1; b < n; ++b) {
        if (cost(a, rank_of[b]) + cost(b, rank_of[a]) >= now[a] + now[b] - 1e-9 ||
            bins[a].size() != bins[b].size())
          continue;
        std::swap(rank_of[a], rank_of[b]);
        now[a] = cost(a, rank_of[a]);
        now[b] = cost(b, rank_of[b]);
        better = true;
      }
  }
  return rank_of;
}

}  // namespace

void KeepInSlots(std::span<const int32_t> held, std::span<const int32_t> wanted,
                 std::span<int32_t> places) {
  std::vector<uint8_t> stays(wanted.size(), 0);
  std::ranges::fill(places, -1);
  for (size_t p = 0; p < places.size(); ++p) {
    const auto found = std::ranges::find(wanted, held[p]);
    if (found == wanted.end() || stays[found - wanted.begin()]) continue;
    stays[found - wanted.begin()] = 1;
    places[p] = held[p];
  }
  size_t next = 0;
  for (int32_t& place : places) {
    if (place >= 0) continue;
    while (stays[next]) ++next;
    place = wanted[next++];
  }
}

void MatchRanks(std::span<const int32_t> previous, const std::vector<RankSlots>& bins, int nodes,
                int num_logical, double node_price, std::span<int32_t> next) {
  const Costs cost(previous, bins, nodes, num_logical, node_price, next);
  const std::vector<size_t> rank_of = Match(cost, bins);
  const std::vector<int32_t> planned(next.begin(), next.end());
  for (size_t a = 0; a < bins.size(); ++a) {
    const RankSlots& to = bins[rank_of[a]];
    KeepInSlots(previous.subspan(to.begin, to.size()),
                std::span(planned).subspan(bins[a].begin, bins[a].size()),
                next.subspan(to.begin, to.size()));
  }
}

}  // namespace switchyard
