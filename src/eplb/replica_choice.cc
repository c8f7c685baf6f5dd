#include "eplb/replica_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"

namespace switchyard {

ExpertLocation::ExpertLocation(const Placement& placement, std::span<const int32_t> replica)
    : placement_(placement), counts_(static_cast<size_t>(placement.layers) * placement.logical, 0) {
  const auto count = [&](int layer, int32_t expert) -> int32_t& {
    return counts_[static_cast<size_t>(layer) * placement.logical + expert];
  };
  for (int layer = 0; layer < placement.layers; ++layer)
    for (const int32_t expert : placement.Layer(layer))
      if (expert >= 0) max_replicas_ = std::max(max_replicas_, ++count(layer, expert));
  to_physical_.assign(counts_.size() * max_replicas_, -1);
  std::ranges::fill(counts_, 0);
  for (int layer = 0; layer < placement.layers; ++layer)
    for (int32_t p = 0; p < placement.physical; ++p) {
      const int32_t expert = placement.Layer(layer)[p];
      if (expert < 0) continue;
      int32_t& seen = count(layer, expert);
      const int32_t number =
          replica.empty() ? seen : replica[static_cast<size_t>(layer) * placement.physical + p];
      CHECK(number >= 0 && number < max_replicas_);
      to_physical_[(static_cast<size_t>(layer) * placement.logical + expert) * max_replicas_ +
                   number] = p;
      ++seen;
    }
}

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

namespace {

// Number of sweeps. With it, a batch on 64 ranks takes 8 us and is within 1 % of the exact optimum
// (bench/eplb_bench.cc).
constexpr int kSweeps = 16;

// Uniform in [0, n), with a bias below 2^-32.
int32_t Uniform(uint64_t random, int32_t n) {
  return static_cast<int32_t>(((random >> 32) * static_cast<uint64_t>(n)) >> 32);
}

uint64_t OfToken(const ChoiceKey& key) {
  return SplitMix64(SplitMix64(key.seed + static_cast<uint64_t>(key.token)) +
                    static_cast<uint64_t>(key.layer));
}

}  // namespace

EpDispatchAlgorithm ParseEpDispatchAlgorithm(const std::string& name) {
  if (name == "static") return EpDispatchAlgorithm::kStatic;
  if (name == "dynamic") return EpDispatchAlgorithm::kDynamic;
  if (name == "fake") return EpDispatchAlgorithm::kFake;
  if (name == "balanced") return EpDispatchAlgorithm::kBalanced;
  if (name == "lp") return EpDispatchAlgorithm::kLp;
  throw Invalid("--ep-dispatch-algorithm {}: want static, dynamic, fake, balanced or lp", name);
}

std::vector<int32_t> StaticReplicas(const ExpertLocation& location, int layer,
                                    const RankTopology& topology, int rank) {
  const int physical = location.num_physical();
  std::vector<int> rank_of(physical);
  for (const RankSlots& slots : LivingSlots(topology, physical))
    std::fill(rank_of.begin() + slots.begin, rank_of.begin() + slots.end, slots.rank);
  std::vector<int32_t> chosen(location.num_logical());
  for (int32_t expert = 0; expert < location.num_logical(); ++expert)
    chosen[expert] = NearReplica(location.Replicas(layer, expert), expert, rank, rank_of,
                                 topology.ranks / topology.nodes);
  return chosen;
}

int32_t DynamicReplica(std::span<const int32_t> replicas, const ChoiceKey& key) {
  const uint64_t random = SplitMix64(OfToken(key) + static_cast<uint64_t>(key.slot));
  return replicas[Uniform(random, static_cast<int32_t>(replicas.size()))];
}

int32_t FakeExpert(int32_t physical, const ChoiceKey& key) {
  const uint64_t random = OfToken(key);
  const int32_t first = Uniform(random, physical);
  // Top-k slot j gets expert slot first + j · stride. The stride is coprime to `physical`, so no
  // expert slot repeats before all of them were used.
  int32_t stride = 1 + Uniform(SplitMix64(random), std::max(physical - 1, 1));
  while (std::gcd(stride, physical) != 1) ++stride;
  return static_cast<int32_t>((first + int64_t{key.slot} * stride) % physical);
}

void BatchDivider::Reset(EpDispatchAlgorithm algorithm, const ExpertLocation& location, int layer,
                         const RankTopology& topology, int offset) {
  algorithm_ = algorithm;
  offset_ = offset;
  location_ = &location;
  layer_ = layer;
  const std::vector<RankSlots> living = LivingSlots(topology, location.num_physical());
  bins_ = static_cast<int>(living.size());
  bin_of_.assign(location.num_physical(), -1);
  for (int bin = 0; bin < bins_; ++bin)
    std::fill(bin_of_.begin() + living[bin].begin, bin_of_.begin() + living[bin].end, bin);
  sources_ = 0;
  std::vector<double> costs;
  for (const RankSlots& slots : living) {
    sources_ += topology.sources == 0 || slots.rank < topology.sources ? 1 : 0;
    costs.push_back(topology.CostOf(slots.rank).row);
  }
  if (algorithm == EpDispatchAlgorithm::kLp && !topology.costs.empty())
    throw Invalid("lp divides rows over equal ranks; want balanced for ranks with costs");
  if (algorithm == EpDispatchAlgorithm::kBalanced)
    filling_.Reset(bins_, location.num_logical(), bin_of_, location.placement().Layer(layer),
                   offset, costs);
  if (algorithm != EpDispatchAlgorithm::kStatic) return;
  static_.resize(static_cast<size_t>(location.num_logical()) * bins_);
  for (int bin = 0; bin < bins_; ++bin) {
    const std::vector<int32_t> chosen = StaticReplicas(location, layer, topology, living[bin].rank);
    for (size_t e = 0; e < chosen.size(); ++e) static_[e * bins_ + bin] = chosen[e];
  }
}

void BatchDivider::Divide(std::span<const int32_t> counts, std::span<int32_t> shares) {
  CHECK(location_ != nullptr && std::ssize(counts) == location_->num_logical() &&
        std::ssize(shares) == location_->num_physical());
  switch (algorithm_) {
    case EpDispatchAlgorithm::kStatic:
      return DivideStatic(counts, shares);
    case EpDispatchAlgorithm::kDynamic:
      return DivideEvenly(counts, shares);
    case EpDispatchAlgorithm::kFake:
      return DivideFake(counts, shares);
    case EpDispatchAlgorithm::kBalanced:
      load_.assign(counts.begin(), counts.end());
      filling_.Fill(load_, kSweeps);
      return filling_.Shares(shares);
    case EpDispatchAlgorithm::kLp:
      ExactBalance(bins_, bin_of_, location_->placement().Layer(layer_), counts, shares, offset_);
      return;
  }
}

void BatchDivider::DivideStatic(std::span<const int32_t> counts, std::span<int32_t> shares) const {
  std::ranges::fill(shares, 0);
  for (size_t e = 0; e < counts.size(); ++e)
    for (int64_t bin = 0; bin < sources_; ++bin)
      shares[static_[e * bins_ + bin]] +=
          static_cast<int32_t>(counts[e] * (bin + 1) / sources_ - counts[e] * bin / sources_);
}

void BatchDivider::DivideEvenly(std::span<const int32_t> counts, std::span<int32_t> shares) const {
  std::ranges::fill(shares, 0);
  for (size_t e = 0; e < counts.size(); ++e) {
    const auto replicas = location_->Replicas(layer_, static_cast<int32_t>(e));
    const auto n = static_cast<int64_t>(replicas.size());
    for (int64_t i = 0; i < n; ++i)
      shares[replicas[i]] = static_cast<int32_t>(counts[e] * (i + 1) / n - counts[e] * i / n);
  }
}

void BatchDivider::DivideFake(std::span<const int32_t> counts, std::span<int32_t> shares) const {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t n = std::ranges::count_if(bin_of_, [](int32_t bin) { return bin >= 0; });
  int64_t i = 0;
  for (size_t p = 0; p < shares.size(); ++p) {
    shares[p] = 0;
    if (bin_of_[p] < 0) continue;
    shares[p] = static_cast<int32_t>(total * (i + 1) / n - total * i / n);
    ++i;
  }
}

int32_t ReplicaOfToken(std::span<const int32_t> replicas, std::span<const int32_t> shares,
                       int32_t ordinal) {
  for (const int32_t place : replicas) {
    if (ordinal < shares[place]) return place;
    ordinal -= shares[place];
  }
  CHECK(false);
  return -1;
}

}  // namespace switchyard
