#include "eplb/load_window.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>

#include "eplb/recorder_options.h"

namespace switchyard {
namespace {

// Total variation distance of two distributions over experts, given as counts, minus the distance
// that sampling noise alone would cause. The noise is estimated as half the mean absolute
// difference of two samples of the same distribution, summed over experts. Shares are approximated
// as normal.
double Distance(std::span<const int64_t> a, std::span<const int64_t> b) {
  const auto sum = [](std::span<const int64_t> counts) {
    return static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  };
  const double all_a = sum(a), all_b = sum(b);
  if (all_a == 0 || all_b == 0) return 0;
  double distance = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double p = static_cast<double>(a[i]) / all_a, q = static_cast<double>(b[i]) / all_b;
    const double either = static_cast<double>(a[i] + b[i]) / (all_a + all_b);
    const double variance = either * (1 - either) * (1 / all_a + 1 / all_b);
    distance += (std::abs(p - q) - std::sqrt(2 / std::numbers::pi * variance)) / 2;
  }
  return std::max(0.0, distance);
}

int32_t ToCount(float sum) {
  constexpr float kMost = 2147483520;  // the largest float32 that fits an int32
  return static_cast<int32_t>(std::min(sum, kMost));
}

}  // namespace

LoadWindow::LoadWindow(int layers, int experts, int ranks, const ExpertMap& map, int64_t passes,
                       Communicator& world)
    : layers_(layers),
      experts_(experts),
      ranks_(ranks),
      map_(map),
      passes_per_step_(1 + (passes - 1) / kSteps),
      world_(world),
      now_(static_cast<size_t>(layers) * (experts + ranks) + 1) {}

LoadWindow::Counts& LoadWindow::CountsOf(uint64_t pass) {
  if (const auto it = open_.find(pass); it != open_.end()) return it->second;
  if (free_.empty()) return open_.emplace(pass, Counts(now_.size(), 0)).first->second;
  auto node = free_.extract(free_.begin());
  node.key() = pass;
  std::ranges::fill(node.mapped(), 0);
  return open_.insert(std::move(node)).position->second;
}

void LoadWindow::AbortPass(uint64_t pass) {
  if (auto node = open_.extract(pass); !node.empty()) free_.insert(std::move(node));
}

void LoadWindow::Add(uint64_t pass, int layer, std::span<const int32_t> logical,
                     std::span<const int32_t> physical) {
  Counts& counts = CountsOf(pass);
  int64_t* experts = ExpertsOf(counts, layer);
  int64_t* ranks = RanksOf(counts, layer);
  for (const int32_t id : logical)
    if (id >= 0) ++experts[id];
  for (const int32_t id : physical)
    if (id >= 0) ++ranks[map_.Owner(id)];
}

void LoadWindow::AddCounts(uint64_t pass, int layer, std::span<const int32_t> logical,
                           std::span<const int32_t> physical) {
  Counts& counts = CountsOf(pass);
  int64_t* experts = ExpertsOf(counts, layer);
  int64_t* ranks = RanksOf(counts, layer);
  for (size_t e = 0; e < logical.size(); ++e) experts[e] += logical[e];
  for (size_t p = 0; p < physical.size(); ++p)
    ranks[map_.Owner(static_cast<int32_t>(p))] += physical[p];
}

// One rank counts a skipped pass. It is one with tokens, which are those of the first ranks.
void LoadWindow::SkipPass(uint64_t pass) { CountsOf(pass).back() = world_.rank() == 0 ? 1 : 0; }

// Counts are summed over ranks as float32. Sums are exact below 2^24, accurate to one part in 10^7
// above, and equal on all ranks.
bool LoadWindow::EndPass(uint64_t pass) {
  if (const auto it = open_.find(pass); it != open_.end()) {
    std::ranges::transform(now_, it->second, now_.begin(), std::plus<int64_t>());
    AbortPass(pass);  // keeps the memory of the counts for later passes
  }
  if (++passes_ < passes_per_step_) return false;
  passes_ = 0;
  sums_.assign(now_.begin(), now_.end());
  world_.AllReduceSum(sums_.data(), sums_.size());
  const auto ranks = sums_.begin() + static_cast<int64_t>(layers_) * experts_;
  const std::vector<int64_t> rank_count(ranks, sums_.end() - 1);
  const double skipped = sums_.back();
  const bool any = std::ranges::any_of(rank_count, [](int64_t rows) { return rows > 0; });
  if (any) {  // steps without rows are dropped
    if (steps_.size() == kSteps) {
      steps_.pop_front();
      balanced_since_ -= balanced_since_ > 0 ? 1 : 0;
    }
    std::vector<int32_t> counts(ranks - sums_.begin());
    std::transform(sums_.begin(), ranks, counts.begin(), ToCount);
    steps_.push_back({.counts = std::move(counts),
                      .balancedness = BalancednessOf(rank_count, ranks_),
                      .passes = static_cast<double>(passes_per_step_) - skipped});
    ++steps_since_plan_;
    if (mixed_) balanced_since_ = steps_.size();
  }
  mixed_ = false;
  std::ranges::fill(now_, 0);
  return any;
}

LoadHistory LoadWindow::History(int most) const {
  const size_t first = steps_.size() - std::min<size_t>(most, steps_.size());
  LoadHistory history{
      .steps = static_cast<int>(steps_.size() - first), .layers = layers_, .experts = experts_};
  history.passes = static_cast<double>(passes_per_step_);
  double passes = 0;
  for (size_t i = first; i < steps_.size(); ++i) {
    history.counts.insert(history.counts.end(), steps_[i].counts.begin(), steps_[i].counts.end());
    passes += steps_[i].passes;
  }
  if (history.steps > 0) history.passes = passes / history.steps;
  return history;
}

std::optional<double> LoadWindow::MeanBalancedness() const {
  double sum = 0;
  for (size_t i = balanced_since_; i < steps_.size(); ++i) sum += steps_[i].balancedness;
  const size_t steps = steps_.size() - balanced_since_;
  if (steps == 0) return std::nullopt;
  return sum / static_cast<double>(steps);
}

std::vector<int64_t> LoadWindow::Sums(int most) const {
  std::vector<int64_t> sums(static_cast<size_t>(layers_) * experts_, 0);
  for (size_t i = steps_.size() - std::min<size_t>(most, steps_.size()); i < steps_.size(); ++i)
    std::ranges::transform(steps_[i].counts, sums, sums.begin(), std::plus<int64_t>());
  return sums;
}

void LoadWindow::OnPlanned(int most) {
  planned_for_ = Sums(most);
  steps_since_plan_ = 0;
}

double LoadWindow::ShapeChange() const {
  if (planned_for_.empty() || steps_since_plan_ < kRecent) return 0;
  const std::vector<int64_t> recent = Sums(kRecent);
  double sum = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    const size_t first = static_cast<size_t>(layer) * experts_;
    sum += Distance(std::span(planned_for_).subspan(first, experts_),
                    std::span(recent).subspan(first, experts_));
  }
  return layers_ > 0 ? sum / layers_ : 0;
}

}  // namespace switchyard
