#include "engine/speculative/draft_pace.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr double kDecay = 0.995;  // per step, of the sums of outcomes
constexpr double kNewest = 0.2;   // weight of the newest time
constexpr double kGain = 1.02;    // a change must promise this factor
constexpr double kUnknown = 0.7;  // acceptance without measurements
constexpr int32_t kFirst = 2;     // drafts before anything was measured

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

DraftPace::DraftPace(int32_t most)
    : most_(most), verified_(most), accepted_(most), seen_verified_(most), seen_accepted_(most) {}

DraftPace::Size& DraftPace::SizeOf(int64_t sequences) {
  const auto [entry, added] = sizes_.try_emplace(ClassOf(sequences));
  Size& size = entry->second;
  if (added) {
    size.arms.resize(most_ + 1);
    size.best = size.running = std::min(kFirst, most_);
  }
  return size;
}

double DraftPace::TokensOf(int32_t limit) const {
  double reached = 1, drafts = 0, before = kUnknown;
  for (int32_t i = 0; i < limit; ++i) {
    constexpr double kPrior = 2;  // outcomes that the acceptance of the position before adds
    before = (accepted_[i] + kPrior * before) / (verified_[i] + kPrior);
    reached *= before;
    drafts += reached;
  }
  const double share = sequence_steps_ > 0 ? with_drafts_ / sequence_steps_ : 1;
  return 1 + share * drafts;
}

double DraftPace::RateOf(const Size& size, int32_t limit) const {
  return TokensOf(limit) / size.arms[limit].seconds;
}

void DraftPace::ObserveDrafts(int64_t sequences, const Drafts& so_far) {
  const auto add = [](std::span<const int64_t> now, std::vector<int64_t>& seen,
                      std::vector<double>& sums) {
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t count = i < now.size() ? now[i] : 0;
      sums[i] = kDecay * sums[i] + static_cast<double>(count - seen[i]);
      seen[i] = count;
    }
  };
  const int64_t steps = so_far.verify_steps - seen_steps_;
  seen_steps_ = so_far.verify_steps;
  // A step without any drafts says nothing about them.
  if (steps == 0 && (with_drafts_ == 0 || sequences == 0)) return;
  add(so_far.verified, seen_verified_, verified_);
  add(so_far.accepted, seen_accepted_, accepted_);
  with_drafts_ = kDecay * with_drafts_ + static_cast<double>(steps);
  sequence_steps_ = kDecay * sequence_steps_ + static_cast<double>(std::max(steps, sequences));
}

void DraftPace::Observe(int64_t sequences, int32_t limit, double seconds) {
  if (sequences == 0 || limit < 0 || limit > most_) return;
  Size& size = SizeOf(sequences);
  Arm& arm = size.arms[limit];
  const bool outlier = arm.samples >= kTrialSteps && seconds > 3 * arm.seconds;
  if (outlier) seconds = 3 * arm.seconds;
  // Of the first steps the shortest counts: they may include work that is done once.
  if (arm.samples == 0) {
    arm.seconds = seconds;
  } else if (arm.samples < kTrialSteps) {
    arm.seconds = std::min(arm.seconds, seconds);
  } else {
    arm.seconds += kNewest * (seconds - arm.seconds);
  }
  ++arm.samples;
  ++size.steps;
  if (limit == size.running && arm.samples >= kTrialSteps) Choose(size);
}

void DraftPace::Choose(Size& size) {
  // The best of the measured numbers.
  if (size.arms[size.best].samples < kTrialSteps) size.best = size.running;
  for (int32_t limit = 0; limit <= most_; ++limit) {
    if (size.arms[limit].samples < kTrialSteps || limit == size.best) continue;
    if (RateOf(size, limit) > kGain * RateOf(size, size.best)) size.best = limit;
  }
  size.running = size.best;
  // A neighbour that was never measured pays at most if its step takes the time of the best one's.
  const auto may_pay = [&](int32_t limit) {
    if (limit < 0 || limit > most_ || size.arms[limit].samples > 0) return false;
    const Arm& best = size.arms[size.best];
    const bool fewer = limit < size.best;
    return fewer || TokensOf(limit) / best.seconds > kGain * RateOf(size, size.best);
  };
  for (const int32_t limit : {0, size.best + 1, size.best - 1}) {
    if (!may_pay(limit)) continue;
    size.running = limit;
    size.steps = 0;
    return;
  }
  if (size.steps < kRetrySteps) return;
  size.steps = 0;
  size.upward = !size.upward;
  const int32_t again = std::clamp(size.best + (size.upward ? 1 : -1), 0, most_);
  if (again == size.best) return;
  size.arms[again].samples = 0;
  size.running = again;
}

int32_t DraftPace::Limit(int64_t sequences) {
  return sequences == 0 ? std::min(kFirst, most_) : SizeOf(sequences).running;
}

}  // namespace switchyard
