#include "eplb/exact_balance.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max() / 4;

// Computes the maximum flow from node 0 to node 1 by Dinic's algorithm: a level graph by BFS,
// augmenting paths by DFS.
class FlowNetwork {
 public:
  explicit FlowNetwork(int nodes) : edges_of_(nodes), level_(nodes), next_(nodes) {}

  // Returns the edge's index.
  int AddEdge(int from, int to, int64_t capacity) {
    edges_of_[from].push_back(static_cast<int>(edges_.size()));
    edges_.push_back({to, capacity, 0});
    edges_of_[to].push_back(static_cast<int>(edges_.size()));
    edges_.push_back({from, 0, 0});
    return static_cast<int>(edges_.size()) - 2;
  }
  void SetCapacity(int edge, int64_t capacity) { edges_[edge].capacity = capacity; }
  int64_t Flow(int edge) const { return edges_[edge].flow; }

  int64_t Maximum() {
    for (Edge& edge : edges_) edge.flow = 0;
    int64_t total = 0;
    while (FindLevels()) {
      std::ranges::fill(next_, 0);
      while (const int64_t pushed = Push(0, kUnbounded)) total += pushed;
    }
    return total;
  }

 private:
  struct Edge {
    int to;
    int64_t capacity, flow;
  };

  bool FindLevels() {
    std::ranges::fill(level_, -1);
    level_[0] = 0;
    std::vector<int> queue{0};
    for (size_t i = 0; i < queue.size(); ++i)
      for (const int e : edges_of_[queue[i]]) {
        const Edge& edge = edges_[e];
        if (edge.capacity == edge.flow || level_[edge.to] >= 0) continue;
        level_[edge.to] = level_[queue[i]] + 1;
        queue.push_back(edge.to);
      }
    return level_[1] >= 0;
  }

  int64_t Push(int node, int64_t most) {
    if (node == 1) return most;
    for (; next_[node] < edges_of_[node].size(); ++next_[node]) {
      const int e = edges_of_[node][next_[node]];
      const int64_t free = edges_[e].capacity - edges_[e].flow;
      if (free == 0 || level_[edges_[e].to] != level_[node] + 1) continue;
      const int64_t pushed = Push(edges_[e].to, std::min(most, free));
      if (pushed == 0) continue;
      edges_[e].flow += pushed;
      edges_[e ^ 1].flow -= pushed;
      return pushed;
    }
    return 0;
  }

  std::vector<Edge> edges_;  // each edge is followed by its reverse
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

}  // namespace

int64_t ExactBalance(int num_bins, std::span<const int32_t> bin_of,
                     std::span<const int32_t> expert_of, std::span<const int32_t> load,
                     std::span<int32_t> shares, int offset) {
  const int experts = static_cast<int>(load.size());
  FlowNetwork network(2 + experts + num_bins);
  int64_t total = 0;
  for (int e = 0; e < experts; ++e) {
    network.AddEdge(0, 2 + e, load[e]);
    total += load[e];
  }
  std::vector<int> slot_edge(bin_of.size(), -1), bin_edge(num_bins);
  std::vector<std::vector<size_t>> places(experts);
  for (size_t p = 0; p < bin_of.size(); ++p)
    if (bin_of[p] >= 0 && expert_of[p] >= 0) places[expert_of[p]].push_back(p);
  // The search for the maximum flow prefers the first edge of an expert. Rotating the edges by
  // `offset` and expert id makes it prefer other replicas.
  for (int e = 0; e < experts; ++e)
    for (size_t i = 0; i < places[e].size(); ++i) {
      const size_t p = places[e][(i + offset + e) % places[e].size()];
      slot_edge[p] = network.AddEdge(2 + e, 2 + experts + bin_of[p], kUnbounded);
    }
  for (int b = 0; b < num_bins; ++b) bin_edge[b] = network.AddEdge(2 + experts + b, 1, 0);

  const auto fits = [&](int64_t level) {
    for (const int edge : bin_edge) network.SetCapacity(edge, level);
    return network.Maximum() == total;
  };
  int64_t low = (total + num_bins - 1) / num_bins, high = total;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(middle))
      high = middle;
    else
      low = middle + 1;
  }
  CHECK(fits(low));
  for (size_t p = 0; p < bin_of.size(); ++p)
    shares[p] = slot_edge[p] < 0 ? 0 : static_cast<int32_t>(network.Flow(slot_edge[p]));
  return low;
}

}  // namespace switchyard
