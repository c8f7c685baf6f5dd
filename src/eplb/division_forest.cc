#include "eplb/division_forest.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace switchyard {

void DivisionForest::Reset(int num_bins, int num_groups, std::span<const int32_t> bin_of,
                           std::span<const int32_t> group_of) {
  CHECK(bin_of.size() == group_of.size());
  bins_ = num_bins;
  bin_of_.assign(bin_of.begin(), bin_of.end());
  group_of_.assign(group_of.begin(), group_of.end());
  up_.resize(num_bins + num_groups);
  cycle_.reserve(up_.size() + 1);
}

int32_t DivisionForest::Above(int32_t node) const {
  const int32_t edge = up_[node];
  if (edge < 0) return -1;
  return node < bins_ ? bins_ + group_of_[edge] : bin_of_[edge];
}

// Reverses the edges on the path to the root.
void DivisionForest::MakeRoot(int32_t node) {
  int32_t edge = -1;  // the edge to the previous node
  while (node >= 0) {
    const int32_t above = Above(node);
    edge = std::exchange(up_[node], edge);
    node = above;
  }
}

bool DivisionForest::FindCycle(int32_t edge) {
  const int32_t group = bins_ + group_of_[edge];
  MakeRoot(group);
  cycle_.assign(1, edge);
  int32_t node = bin_of_[edge];
  for (; up_[node] >= 0; node = Above(node)) cycle_.push_back(up_[node]);
  return node == group;
}

void DivisionForest::Cut(int32_t edge) {
  for (const int32_t node : {bin_of_[edge], bins_ + group_of_[edge]})
    if (up_[node] == edge) up_[node] = -1;
}

void DivisionForest::Prune(std::span<double> shares) {
  CHECK(shares.size() == bin_of_.size());
  std::ranges::fill(up_, -1);
  for (int32_t edge = 0; edge < std::ssize(shares); ++edge) {
    if (shares[edge] <= 0) continue;
    if (FindCycle(edge)) {
      // The smallest share of the cycle becomes 0. Around the cycle, shares alternately decrease
      // and increase by the amount of the smallest share.
      const auto least =
          std::ranges::min_element(cycle_, {}, [&](int32_t of) { return shares[of]; });
      const double moved = shares[*least];
      const bool odd = (least - cycle_.begin()) % 2 != 0;
      for (size_t i = 0; i < cycle_.size(); ++i) {
        double& share = shares[cycle_[i]];
        share += (i % 2 != 0) == odd ? -moved : moved;
        if (share <= 0) Cut(cycle_[i]);
      }
      if (shares[edge] <= 0) continue;
    }
    up_[bins_ + group_of_[edge]] = edge;  // FindCycle has made this node a root
  }
}

}  // namespace switchyard
