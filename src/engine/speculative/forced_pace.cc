#include "engine/speculative/forced_pace.h"

#include <algorithm>

namespace switchyard {
namespace {

// Weight of the newest outcome: 1 / kNewest in the mean of a sequence, 1 / kNewestOfAll in the mean
// of all sequences.
constexpr int32_t kNewest = 8, kNewestOfAll = 64;
constexpr int32_t kFirstPause = 4, kLongestPause = 32;  // steps between trials

}  // namespace

// The cost of a draft: the time of one more row divided by the time of a step per sequence, in
// units of 1 / kOne. Measured with models/yardling on two cores: 0.17 for one sequence, 0.75 for
// 32. Larger models read more weights in a step, so the cost is smaller.
int32_t ForcedAcceptance::CostOf(int64_t sequences) {
  const auto more = static_cast<int32_t>(std::min<int64_t>(sequences, 31) - 1);
  return kOne / 5 + more * kOne / 50;
}

void ForcedAcceptance::Observe(int32_t drafted, int32_t accepted, ForcedPace& pace) {
  for (int32_t i = 0; i < std::min(accepted + 1, drafted); ++i) {
    const int32_t outcome = i < accepted ? kOne : 0;
    pace.right += (outcome - pace.right) / kNewest;
    right_ += (outcome - right_) / kNewestOfAll;
  }
}

int32_t ForcedAcceptance::Limit(const DraftCounts& so_far, int64_t sequences, int32_t most,
                                ForcedPace& pace) {
  if (pace.right < 0) {
    pace.right = right_;
    pace.pause = kFirstPause;
  }
  if (so_far.steps > pace.seen.steps)
    Observe(so_far.drafted - pace.seen.drafted, so_far.accepted - pace.seen.accepted, pace);
  const bool new_outcome = so_far.steps > pace.seen.steps;
  pace.seen = so_far;
  int32_t limit = 0;
  for (int32_t right = pace.right; limit < most && right > CostOf(sequences); ++limit)
    right = right * pace.right / kOne;
  if (limit > 0) {
    pace.pause = kFirstPause;
    pace.paused = 0;
    return limit;
  }
  // Occasionally one draft is tried. The trial continues until a draft has an outcome.
  if (new_outcome) {
    pace.paused = pace.pause;
    pace.pause = std::min(2 * pace.pause, kLongestPause);
  }
  if (pace.paused == 0) return std::min(1, most);
  --pace.paused;
  return 0;
}

}  // namespace switchyard
