#include "eplb/water_filling.h"

#include <algorithm>
#include <cmath>
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

namespace {

constexpr double kNothing = 1e-6;  // in tokens; smaller amounts are rounding errors

}  // namespace

void WaterFilling::Reset(int num_bins, int num_experts, std::span<const int32_t> bin_of,
                         std::span<const int32_t> expert_of, int offset,
                         std::span<const double> costs) {
  CHECK(bin_of.size() == expert_of.size());
  CHECK(costs.empty() || std::ssize(costs) == num_bins);
  costs_.assign(num_bins, 1.0);
  std::ranges::copy(costs, costs_.begin());
  offset_ = offset;
  begin_.assign(num_experts + 1, 0);
  // A second replica of an expert in the same bin does not change what can be balanced, so its slot
  // is treated as unused.
  const auto new_bin = [&](size_t p) {
    if (bin_of[p] < 0 || expert_of[p] < 0 || last_bin_[expert_of[p]] == bin_of[p]) return false;
    last_bin_[expert_of[p]] = bin_of[p];
    return true;
  };
  last_bin_.assign(num_experts, -1);
  for (size_t p = 0; p < bin_of.size(); ++p)
    if (new_bin(p)) ++begin_[expert_of[p] + 1];
  replicated_.clear();
  int32_t total = 0;
  for (int e = 0; e < num_experts; ++e) {
    const int32_t count = begin_[e + 1];
    begin_[e + 1] = 0;
    if (count > 1) replicated_.push_back({e, total, total + count});
    begin_[e] = count > 1 ? total : -1;
    if (count > 1) total += count;
  }
  replicas_.resize(total);
  filled_.resize(total);
  order_.resize(total);
  single_.assign(num_experts, {-1, -1});
  last_bin_.assign(num_experts, -1);
  for (size_t p = 0; p < bin_of.size(); ++p) {
    if (!new_bin(p)) continue;
    const int32_t expert = expert_of[p];
    const Replica replica{bin_of[p], static_cast<int32_t>(p)};
    if (begin_[expert] < 0)
      single_[expert] = replica;
    else
      replicas_[begin_[expert]++] = replica;
  }
  bins_.resize(num_bins);
  load_.resize(num_experts);
  forest_is_ready_ = false;
}

void WaterFilling::PrepareForest() {
  if (forest_is_ready_) return;
  std::vector<int32_t> bins(replicas_.size()), groups(replicas_.size());
  for (size_t g = 0; g < replicated_.size(); ++g)
    for (int32_t i = replicated_[g].begin; i < replicated_[g].end; ++i) {
      bins[i] = replicas_[i].bin;
      groups[i] = static_cast<int32_t>(g);
    }
  forest_.Reset(static_cast<int>(bins_.size()), static_cast<int>(replicated_.size()), bins, groups);
  forest_is_ready_ = true;
}

void WaterFilling::FillExpert(const Replicated& group, double load) {
  const int32_t begin = group.begin, count = group.end - group.begin;
  if (count == 2) {
    double& a = bins_[replicas_[begin].bin];
    double& b = bins_[replicas_[begin + 1].bin];
    const double cost_a = costs_[replicas_[begin].bin], cost_b = costs_[replicas_[begin + 1].bin];
    const double other_a = a - filled_[begin] * cost_a, other_b = b - filled_[begin + 1] * cost_b;
    const double share =
        std::clamp((load * cost_b + other_b - other_a) / (cost_a + cost_b), 0.0, load);
    filled_[begin] = share;
    filled_[begin + 1] = load - share;
    a = other_a + share * cost_a;
    b = other_b + (load - share) * cost_b;
    return;
  }
  const auto order = std::span(order_).subspan(begin, count);
  const auto cost = [&](int32_t i) { return costs_[replicas_[i].bin]; };
  for (int32_t i = 0; i < count; ++i) {
    bins_[replicas_[begin + i].bin] -= filled_[begin + i] * cost(begin + i);
    order[i] = begin + i;
  }
  // Insertion sort by the load of the bin without this expert. There are few replicas.
  const auto other = [&](int32_t i) { return bins_[replicas_[i].bin]; };
  for (int32_t i = 1; i < count; ++i) {
    const int32_t moved = order[i];
    const double level = other(moved);
    int32_t at = i;
    for (; at > 0 && other(order[at - 1]) > level; --at) order[at] = order[at - 1];
    order[at] = moved;
  }
  double level = 0, sum = load, speed = 0;
  for (int32_t i = 0; i < count; ++i) {
    sum += other(order[i]) / cost(order[i]);
    speed += 1 / cost(order[i]);
    level = sum / speed;
    if (i + 1 == count || level <= other(order[i + 1])) break;
  }
  for (int32_t i = begin; i < group.end; ++i) {
    filled_[i] = std::max(0.0, level - other(i)) / cost(i);
    bins_[replicas_[i].bin] += filled_[i] * cost(i);
  }
}

double WaterFilling::Fill(std::span<const double> load, int sweeps, double tolerance) {
  std::ranges::fill(bins_, 0.0);
  double total = 0;
  for (size_t e = 0; e < single_.size(); ++e) {
    load_[e] = load[e];
    if (single_[e].bin < 0) continue;
    bins_[single_[e].bin] += load[e] * costs_[single_[e].bin];
    total += load[e];
  }
  for (const Replicated& group : replicated_) {
    const double share = load[group.expert] / (group.end - group.begin);
    total += load[group.expert];
    for (int32_t i = group.begin; i < group.end; ++i) {
      filled_[i] = share;
      bins_[replicas_[i].bin] += share * costs_[replicas_[i].bin];
    }
  }
  double speed = 0;  // the number of bins, if costs are 1
  for (const double cost : costs_) speed += 1 / cost;
  mean_ = total / speed;
  double max_load = *std::ranges::max_element(bins_);
  for (int sweep = 0; sweep < sweeps && max_load > mean_ * (1 + tolerance); ++sweep) {
    if (sweep % 2 == 0)
      for (const Replicated& group : replicated_) FillExpert(group, load[group.expert]);
    else
      for (size_t i = replicated_.size(); i-- > 0;)
        FillExpert(replicated_[i], load[replicated_[i].expert]);
    max_load = *std::ranges::max_element(bins_);
  }
  return max_load;
}

void WaterFilling::Shares(std::span<int32_t> shares) {
  PrepareForest();
  forest_.Prune(filled_);
  std::ranges::fill(shares, 0);
  for (size_t e = 0; e < single_.size(); ++e)
    if (single_[e].bin >= 0) shares[single_[e].place] = static_cast<int32_t>(load_[e]);
  for (const Replicated& group : replicated_) {
    auto left = static_cast<int32_t>(load_[group.expert]);
    receivers_.clear();
    for (int32_t i = group.begin; i < group.end; ++i) {
      if (filled_[i] > kNothing) receivers_.push_back(i);
      const double whole = std::min(std::floor(filled_[i] + kNothing), static_cast<double>(left));
      bins_[replicas_[i].bin] += (whole - filled_[i]) * costs_[replicas_[i].bin];
      filled_[i] = whole;
      left -= static_cast<int32_t>(whole);
    }
    const auto count = static_cast<int32_t>(receivers_.size());
    for (; left > 0 && count > 0; --left) {
      const int32_t first = (offset_ + group.expert) % count;
      const auto after = [&](int32_t i) {
        return bins_[replicas_[i].bin] + costs_[replicas_[i].bin];
      };
      int32_t emptiest = receivers_[first];
      for (int32_t i = 1; i < count; ++i) {
        const int32_t other = receivers_[(first + i) % count];
        if (after(other) < after(emptiest)) emptiest = other;
      }
      bins_[replicas_[emptiest].bin] += costs_[replicas_[emptiest].bin];
      filled_[emptiest] += 1;
    }
    for (int32_t i = group.begin; i < group.end; ++i)
      shares[replicas_[i].place] = static_cast<int32_t>(filled_[i]);
  }
}

}  // namespace switchyard
