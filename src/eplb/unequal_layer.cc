#include "eplb/unequal_layer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr double kNothing = 1e-9;  // relative; smaller gains and shares are rounding errors
constexpr int kSweeps = 4;         // over the replicated experts
// Experts of the slowest bin for which a replica is tried.
constexpr size_t kCandidates = 8;

int Slowest(const std::vector<double>& times) {
  return static_cast<int>(std::ranges::max_element(times) - times.begin());
}

// The replicated experts with costs, the most expensive first.
std::vector<int32_t> Replicated(const ExpertCosts& costs, const BinExperts& experts) {
  std::vector<int32_t> found;
  const auto cost = [&](int32_t e) { return costs.Whole(experts.bins_of[e].front(), e); };
  for (int32_t e = 0; e < costs.experts(); ++e)
    if (experts.bins_of[e].size() > 1 && cost(e) > 0) found.push_back(e);
  std::ranges::stable_sort(found, std::ranges::greater(), cost);
  return found;
}

std::vector<double> TimesOfSingles(const ExpertCosts& costs, const BinExperts& experts) {
  std::vector<double> times(costs.bins(), 0.0);
  for (int32_t e = 0; e < costs.experts(); ++e)
    if (experts.bins_of[e].size() == 1) {
      const int bin = experts.bins_of[e].front();
      times[bin] += costs.Whole(bin, e);
    }
  return times;
}

// Each replicated expert goes to the bin that then has the least time.
std::vector<double> TimesWhole(const ExpertCosts& costs, const BinExperts& experts,
                               std::span<const int32_t> replicated) {
  std::vector<double> times = TimesOfSingles(costs, experts);
  for (const int32_t e : replicated) {
    const auto after = [&](int bin) { return times[bin] + costs.Whole(bin, e); };
    const int best = *std::ranges::min_element(experts.bins_of[e], {}, after);
    times[best] = after(best);
  }
  return times;
}

// Divides one expert over `bins` so that those with a share have equal times. `times`: without this
// expert. A share costs its fraction of the whole time.
void Divide(const ExpertCosts& costs, int32_t expert, std::span<const double> times,
            std::vector<int> bins, std::span<double> shares) {
  std::ranges::sort(bins, {}, [&](int bin) { return times[bin]; });
  double level = 0, sum = 1, speed = 0;  // sum and speed of the bins so far
  for (size_t i = 0; i < bins.size(); ++i) {
    const double cost = std::max(costs.Whole(bins[i], expert), kNothing);
    sum += times[bins[i]] / cost;
    speed += 1 / cost;
    level = sum / speed;
    if (i + 1 == bins.size() || level <= times[bins[i + 1]]) break;
  }
  for (const int bin : bins)
    shares[bin] = std::max(0.0, level - times[bin]) / std::max(costs.Whole(bin, expert), kNothing);
}

// Divides each replicated expert in turn, while the shares of the others are fixed. Every bin with
// a share then reads the expert's weights.
std::vector<double> TimesDivided(const ExpertCosts& costs, const BinExperts& experts,
                                 std::span<const int32_t> replicated) {
  const auto bins = static_cast<size_t>(costs.bins());
  std::vector<double> times = TimesOfSingles(costs, experts);
  std::vector<double> shares(replicated.size() * bins, 0.0);
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (size_t i = 0; i < replicated.size(); ++i) {
      const int32_t e = replicated[i];
      const auto own = std::span(shares).subspan(i * bins, bins);
      for (const int bin : experts.bins_of[e]) times[bin] -= own[bin] * costs.Whole(bin, e);
      std::ranges::fill(own, 0.0);
      Divide(costs, e, times, experts.bins_of[e], own);
      for (const int bin : experts.bins_of[e]) times[bin] += own[bin] * costs.Whole(bin, e);
    }
  times = TimesOfSingles(costs, experts);
  for (size_t i = 0; i < replicated.size(); ++i)
    for (const int bin : experts.bins_of[replicated[i]]) {
      const double share = shares[i * bins + bin];
      if (share > kNothing)
        times[bin] += share * costs.Rows(bin, replicated[i]) + costs.Reads(bin, replicated[i]);
    }
  return times;
}

}  // namespace

ExpertCosts::ExpertCosts(const std::vector<RankSlots>& bins, const RankTopology& topology,
                         std::span<const double> load, std::span<const double> with_rows)
    : bins_(static_cast<int>(bins.size())), experts_(static_cast<int>(load.size())) {
  CHECK_EQ(load.size(), with_rows.size());
  for (const RankSlots& bin : bins) {
    const RankCost cost = topology.CostOf(bin.rank);
    for (const double rows : load) rows_.push_back(rows * cost.row);
    for (const double passes : with_rows) reads_.push_back(passes * cost.expert);
  }
}

double ExpertCosts::WholeBin(int bin) const {
  double sum = 0;
  for (int32_t e = 0; e < experts_; ++e) sum += Whole(bin, e);
  return sum;
}

BinExperts::BinExperts(const std::vector<RankSlots>& bins, int experts,
                       std::span<const int32_t> map)
    : BinExperts(static_cast<int>(bins.size()), experts) {
  for (size_t b = 0; b < bins.size(); ++b)
    for (int p = bins[b].begin; p < bins[b].end; ++p)
      if (map[p] >= 0 && map[p] < experts && !Holds(static_cast<int>(b), map[p]))
        Add(static_cast<int>(b), map[p]);
}

bool BinExperts::Holds(int bin, int32_t expert) const {
  return std::ranges::find(bins_of[expert], bin) != bins_of[expert].end();
}

void BinExperts::Add(int bin, int32_t expert) {
  of_bin[bin].push_back(expert);
  bins_of[expert].push_back(bin);
}

void BinExperts::Remove(int bin, int32_t expert) {
  std::erase(of_bin[bin], expert);
  std::erase(bins_of[expert], bin);
}

std::vector<double> BinTimes(const ExpertCosts& costs, const BinExperts& experts) {
  const std::vector<int32_t> replicated = Replicated(costs, experts);
  std::vector<double> whole = TimesWhole(costs, experts, replicated);
  if (replicated.empty()) return whole;
  std::vector<double> divided = TimesDivided(costs, experts, replicated);
  return std::ranges::max(divided) < std::ranges::max(whole) ? divided : whole;
}

double SlowestTime(const ExpertCosts& costs, const BinExperts& experts) {
  return std::ranges::max(BinTimes(costs, experts));
}

UnequalSearch::UnequalSearch(const std::vector<RankSlots>& bins, const ExpertCosts& costs,
                             int budget)
    : bins_(bins), costs_(costs), budget_(budget), hottest_(costs.experts()) {
  std::iota(hottest_.begin(), hottest_.end(), 0);
  std::ranges::stable_sort(hottest_, std::ranges::greater(),
                           [&](int32_t e) { return costs.Whole(0, e); });
}

bool UnequalSearch::HasRoom(int bin, const BinExperts& experts) const {
  return std::ssize(experts.of_bin[bin]) < bins_[bin].size();
}

void UnequalSearch::PlaceFastestFirst(BinExperts* experts) const {
  std::vector<int> order(bins_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int bin) { return costs_.WholeBin(bin); });
  auto bin = order.begin();
  for (const int32_t e : hottest_) {
    while (!HasRoom(*bin, *experts)) ++bin;
    experts->Add(*bin, e);
  }
}

void UnequalSearch::PlaceByTime(BinExperts* experts) const {
  std::vector<double> times(bins_.size(), 0.0);
  for (const int32_t e : hottest_) {
    int best = -1;
    for (int bin = 0; bin < costs_.bins(); ++bin)
      if (HasRoom(bin, *experts) &&
          (best < 0 || times[bin] + costs_.Whole(bin, e) < times[best] + costs_.Whole(best, e)))
        best = bin;
    CHECK_GE(best, 0);
    times[best] += costs_.Whole(best, e);
    experts->Add(best, e);
  }
}

UnequalSearch::Change UnequalSearch::BestChange(int slowest, const std::vector<double>& times,
                                                const BinExperts& experts) const {
  Change best{.slowest = times[slowest] * (1 - kNothing)};
  const auto consider = [&](int to, int32_t leaves, int32_t comes) {
    double here = times[slowest] - costs_.Whole(slowest, leaves);
    double there = times[to] + costs_.Whole(to, leaves);
    if (comes >= 0) {
      here += costs_.Whole(slowest, comes);
      there -= costs_.Whole(to, comes);
    }
    const double after = std::max(here, there);
    if (after < best.slowest) best = {to, leaves, comes, after};
  };
  const auto single = [&](int32_t e) { return experts.bins_of[e].size() == 1; };
  for (const int32_t leaves : experts.of_bin[slowest]) {
    if (!single(leaves)) continue;
    for (int to = 0; to < costs_.bins(); ++to) {
      if (to == slowest) continue;
      if (HasRoom(to, experts)) consider(to, leaves, -1);
      for (const int32_t comes : experts.of_bin[to])
        if (single(comes)) consider(to, leaves, comes);
    }
  }
  return best;
}

int UnequalSearch::Improve(int most, BinExperts* experts) const {
  int changes = 0;
  for (; changes < most; ++changes) {
    const std::vector<double> times = BinTimes(costs_, *experts);
    const int slowest = Slowest(times);
    const Change change = BestChange(slowest, times, *experts);
    if (change.to < 0) break;
    experts->Remove(slowest, change.leaves);
    experts->Add(change.to, change.leaves);
    if (change.comes < 0) continue;
    experts->Remove(change.to, change.comes);
    experts->Add(slowest, change.comes);
  }
  return changes;
}

// Adds the replica of an expert of the slowest bin that helps most. Returns false if none helps.
bool UnequalSearch::AddBestReplica(BinExperts* experts) const {
  const std::vector<double> times = BinTimes(costs_, *experts);
  const int slowest = Slowest(times);
  std::vector<int32_t> candidates = experts->of_bin[slowest];
  std::ranges::stable_sort(candidates, std::ranges::greater(),
                           [&](int32_t e) { return costs_.Whole(slowest, e); });
  candidates.resize(std::min(candidates.size(), kCandidates));
  double least = times[slowest] * (1 - kNothing);
  std::pair<int, int32_t> best{-1, -1};
  for (const int32_t e : candidates)
    for (int bin = 0; bin < costs_.bins(); ++bin) {
      if (!HasRoom(bin, *experts) || experts->Holds(bin, e)) continue;
      experts->Add(bin, e);
      const double after = SlowestTime(costs_, *experts);
      experts->Remove(bin, e);
      if (after >= least) continue;
      least = after;
      best = {bin, e};
    }
  if (best.first < 0) return false;
  experts->Add(best.first, best.second);
  return true;
}

void UnequalSearch::FillSlots(BinExperts* experts) const {
  for (int added = 0; added < budget_ && AddBestReplica(experts);) ++added;
  for (int bin = 0; bin < costs_.bins(); ++bin)
    for (auto e = hottest_.begin(); e != hottest_.end() && HasRoom(bin, *experts); ++e)
      if (!experts->Holds(bin, *e)) experts->Add(bin, *e);
}

BinExperts UnequalSearch::FromScratch(bool fastest_first) const {
  BinExperts experts(costs_.bins(), costs_.experts());
  fastest_first ? PlaceFastestFirst(&experts) : PlaceByTime(&experts);
  Improve(budget_, &experts);
  FillSlots(&experts);
  return experts;
}

}  // namespace switchyard
