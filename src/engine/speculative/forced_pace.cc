#include "engine/speculative/forced_pace.h"

#include <algorithm>

namespace switchyard {
namespace {

// Weight of the newest outcome: 1 / kNewest in the mean of a sequence, 1 / kNewestOfAll in the mean
// of all sequences.
constexpr int32_t kNewest = 8, kNewestOfAll = 64;
constexpr int32_t kFirstPause = 4, kLongestPause = 32;  // steps between trials

}  // namespace

void ForcedAcceptance::Observe(int32_t drafted, int32_t accepted, ForcedPace& pace) {
  for (int32_t i = 0; i < std::min(accepted + 1, drafted); ++i) {
    const int32_t outcome = i < accepted ? kDraftUnit : 0;
    pace.acceptance += (outcome - pace.acceptance) / kNewest;
    acceptance_ += (outcome - acceptance_) / kNewestOfAll;
  }
}

int32_t ForcedAcceptance::Limit(const DraftCounts& so_far, int64_t sequences, int32_t most,
                                ForcedPace& pace) {
  if (pace.acceptance < 0) {
    pace.acceptance = acceptance_;
    pace.pause = kFirstPause;
  }
  if (so_far.steps > pace.seen.steps)
    Observe(so_far.drafted - pace.seen.drafted, so_far.accepted - pace.seen.accepted, pace);
  const bool new_outcome = so_far.steps > pace.seen.steps;
  pace.seen = so_far;
  int32_t limit = 0;
  for (int32_t probability = pace.acceptance; limit < most && probability > CostOfDraft(sequences);
       ++limit)
    probability = probability * pace.acceptance / kDraftUnit;
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
