#include "engine/speculative/draft_pace.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace switchyard {
namespace {

constexpr double kDecay = 0.995;  // factor per step on the sums of outcomes
constexpr double kGain = 1.02;    // more drafts must raise the expected rate by this factor
constexpr double kWorth = 1.02;   // and drafts must raise it by this one, compared with none
constexpr double kLongest = 2;    // limit of a measured time, relative to the median
constexpr double kUnknown = 0.7;  // acceptance without measurements
constexpr int32_t kFirst = 2;     // drafts before anything was measured
// How far a number of drafts that was never measured may exceed the best one.
constexpr int32_t kMostMore = 2;
// Number of steps after which a measured time is outdated. Later the sequences are longer, so the
// time is measured again before the number of drafts is selected.
constexpr int64_t kFresh = 200;
// A trial ends after kFewSteps steps if its rate is below kHopeless times the rate of the best
// number of drafts.
constexpr int kFewSteps = 2;
constexpr int64_t kCompareSteps = 8;
constexpr double kHopeless = 0.85;

// Batch sizes that share measurements: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …
int64_t ClassOf(int64_t sequences) {
  int64_t size = 1;
  while (size < sequences) {
    const int64_t middle = size + size / 2;
    if (size > 1 && middle >= sequences) return middle;
    size *= 2;
  }
  return size;
}

}  // namespace

void DraftPace::Arm::Add(double time, int64_t step) {
  last[samples % kWindow] = time;
  ++samples;
  measured = step;
  std::array<double, kWindow> sorted = last;
  const auto count = static_cast<int>(std::min<int64_t>(samples, kWindow)), half = count / 2;
  std::nth_element(sorted.begin(), sorted.begin() + half, sorted.begin() + count);
  const double longest = kLongest * sorted[half];
  seconds = std::accumulate(sorted.begin(), sorted.begin() + count, 0.0,
                            [&](double sum, double t) { return sum + std::min(t, longest); }) /
            count;
}

DraftPace::DraftPace(int32_t most)
    : most_(most), last_(std::min(kFirst, most)), wanted_(most), accepted_(most), seen_(most) {}

const DraftPace::Size* DraftPace::Nearest(int64_t sequences, const Size* except) const {
  const Size* nearest = nullptr;
  const auto distance = [&](const Size& size) {
    return std::abs(std::log(static_cast<double>(size.sequences) / static_cast<double>(sequences)));
  };
  for (const auto& [key, size] : sizes_) {
    if (&size == except || !size.arms[size.best].known()) continue;
    if (!nearest || distance(size) < distance(*nearest)) nearest = &size;
  }
  return nearest;
}

DraftPace::Size& DraftPace::SizeOf(int64_t sequences) {
  const int64_t key = ClassOf(sequences);
  const auto found = sizes_.find(key);
  if (found != sizes_.end()) return found->second;
  const Size* const like = Nearest(key, nullptr);
  Size& size = sizes_[key];
  size.sequences = key;
  size.arms.resize(most_ + 1);
  size.best = size.running = like ? like->best : std::min(kFirst, most_);
  return size;
}

double DraftPace::TokensOf(int32_t limit) const {
  double tokens = 1, reached = 1, acceptance = kUnknown;
  for (int32_t i = 0; i < limit; ++i) {
    // The prior is the acceptance at the previous position. It has the weight of this many steps.
    constexpr double kPrior = 2;
    const double before = reached;
    reached = (accepted_[i] + kPrior * before * acceptance) / (wanted_[i] + kPrior);
    acceptance = std::min(1.0, reached / before);
    tokens += reached;
  }
  return tokens;
}

double DraftPace::SecondsOf(const Size& size, int32_t limit) const {
  if (size.arms[limit].known()) return size.arms[limit].seconds;
  const double plain = size.arms[0].seconds;
  if (!size.arms[0].known()) return 0;
  const auto nearest_arm = [&](const Size& of) {
    int32_t nearest = 0;
    for (int32_t i = 1; i <= most_; ++i)
      if (of.arms[i].known() && (nearest == 0 || std::abs(i - limit) < std::abs(nearest - limit)))
        nearest = i;
    return nearest;
  };
  // Assumes that each draft adds the same time.
  const auto scaled = [&](const Size& of, int32_t arm) {
    return plain * (1 + (of.arms[arm].seconds / of.arms[0].seconds - 1) * limit / arm);
  };
  if (const int32_t arm = nearest_arm(size); arm > 0) return scaled(size, arm);
  const Size* const like = Nearest(size.sequences, &size);
  if (!like || !like->arms[0].known()) return 0;
  const int32_t arm = nearest_arm(*like);
  return arm > 0 ? scaled(*like, arm) : 0;
}

double DraftPace::RateOf(const Size& size, int32_t limit) const {
  const double seconds = SecondsOf(size, limit);
  return seconds > 0 ? TokensOf(limit) / seconds : 0;
}

double DraftPace::WorthOf(const Size& size, int32_t limit) const {
  return RateOf(size, limit) / (limit > 0 ? kWorth : 1);
}

double DraftPace::LossOf(const Size& size, int32_t limit, double seconds) const {
  const double rate = RateOf(size, size.best);
  return rate > 0 ? std::max(0.0, seconds - TokensOf(limit) / rate) : 0;
}

void DraftPace::ObserveDrafts(int64_t sequences, int32_t limit, std::span<const int64_t> accepted) {
  for (int32_t i = 0; i < most_; ++i) {
    const int64_t count = i < std::ssize(accepted) ? accepted[i] : 0;
    const auto more = static_cast<double>(count - std::exchange(seen_[i], count));
    if (i >= limit || sequences == 0) continue;
    wanted_[i] = kDecay * wanted_[i] + static_cast<double>(sequences);
    accepted_[i] = kDecay * accepted_[i] + more;
  }
}

void DraftPace::Observe(int64_t sequences, int32_t limit, double seconds) {
  if (sequences == 0 || limit > most_) return;
  Size& size = SizeOf(sequences);
  ++size.steps;
  elapsed_ += seconds;
  if (size.running != size.best && limit != size.best) {
    const double loss = LossOf(size, std::max(limit, 0), seconds);
    size.trial_cost += loss;
    lost_ += loss;
  }
  if (limit < 0) return;
  size.arms[limit].Add(seconds, size.steps);
  if (limit == size.running) Choose(size);
}

void DraftPace::Try(Size& size, int32_t limit) {
  size.arms[limit].samples = 0;
  size.running = limit;
  size.trial_began = size.steps;
  size.trial_cost = 0;
}

std::optional<int32_t> DraftPace::Promising(const Size& size) const {
  std::optional<int32_t> found;
  const double best = WorthOf(size, size.best);
  double highest = best;
  for (int32_t limit = 0; limit <= most_; ++limit) {
    if (limit == size.best) continue;
    if (!size.arms[limit].known() && limit > size.best + kMostMore) break;
    const double worth = WorthOf(size, limit);
    if (worth <= highest || (limit > size.best && worth < kGain * best)) continue;
    found = limit;
    highest = worth;
  }
  return found;
}

std::optional<int32_t> DraftPace::Retry(Size& size) const {
  if (size.steps - size.trial_began < kRetrySteps) return std::nullopt;
  const std::array<int32_t, 3> others = {size.best + 1, size.best - 1, 0};
  const int32_t limit = others[size.next_retry % others.size()];
  if (limit < 0 || limit > most_ || limit == size.best) {
    ++size.next_retry;
    return std::nullopt;
  }
  const double best = size.arms[size.best].seconds, seconds = SecondsOf(size, limit);
  const double expected = kTrialSteps * (seconds > 0 ? LossOf(size, limit, seconds) : best);
  if (lost_ + std::max(expected, size.trial_cost) > kTrialShare * elapsed_) return std::nullopt;
  ++size.next_retry;
  return limit;
}

void DraftPace::Choose(Size& size) {
  const Arm& arm = size.arms[size.running];
  const bool hopeless = size.running != size.best && arm.samples >= kFewSteps &&
                        RateOf(size, size.running) < kHopeless * RateOf(size, size.best);
  if (arm.samples < kTrialSteps && !hopeless) return;
  // Outside of trials, the numbers of drafts are compared only in every kCompareSteps-th step.
  if (size.running == size.best && arm.samples > kTrialSteps && size.steps % kCompareSteps != 0)
    return;
  size.running = size.best;
  if (!size.arms[size.best].known()) return;
  if (size.best > 0 && !size.arms[0].known()) return Try(size, 0);
  if (const auto limit = Promising(size)) {
    const Arm& promising = size.arms[*limit];
    if (!promising.known() || promising.samples < kFewSteps ||
        size.steps - promising.measured > kFresh)
      return Try(size, *limit);
    size.best = size.running = *limit;
    return;
  }
  if (const auto limit = Retry(size)) Try(size, *limit);
}

int32_t DraftPace::Limit(int64_t sequences) {
  if (sequences > 0) last_ = SizeOf(sequences).running;
  return last_;
}

}  // namespace switchyard
