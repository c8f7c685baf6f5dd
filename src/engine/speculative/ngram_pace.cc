#include "engine/speculative/ngram_pace.h"

#include <algorithm>

namespace switchyard {
namespace {

// Weight of the newest outcome: 1 / kNewestOutcome.
constexpr int32_t kNewestOutcome = 16;
// An estimate that allows no drafts returns to the first one by 1 / kReturn in each step that would
// use it. So wrong drafts become rare, but later text gets another chance.
constexpr int32_t kReturn = 512;

// The estimate before any outcome: 0.4 after 2 tokens, 0.7 after 4, 0.85 after 8.
constexpr int32_t FirstEstimate(int64_t matched) {
  return static_cast<int32_t>(kDraftUnit - kDraftUnit * 6 / (5 * matched));
}

}  // namespace

NgramPace::NgramPace() {
  for (int64_t i = 0; i < kLengths; ++i) acceptance_[i] = FirstEstimate(NgramIndex::kShortest + i);
}

int32_t& NgramPace::AcceptanceAfter(int64_t matched) {
  return acceptance_[std::min(matched, NgramIndex::kLongest) - NgramIndex::kShortest];
}

// A step with drafts gives more tokens than a plain one, so a row has to give more than its share
// of a plain step: kMargin. Drafts that are almost certainly right are always worth their rows.
int64_t NgramPace::Limit(int64_t matched, int32_t cost, int64_t most) {
  constexpr int32_t kMargin = kDraftUnit / 10, kCertain = kDraftUnit * 4 / 5;
  const int32_t least = std::min(cost + kMargin, kCertain);
  int64_t limit = 0;
  // The probability that the drafts so far are right.
  for (int32_t right = kDraftUnit; limit < most; ++limit) {
    right = right * AcceptanceAfter(matched + limit) / kDraftUnit;
    if (right <= least) break;
  }
  if (limit > 0 || most == 0) return limit;
  int32_t& estimate = AcceptanceAfter(matched);
  const int32_t first = FirstEstimate(std::min(matched, NgramIndex::kLongest));
  if (estimate < first) estimate += std::max(1, (first - estimate) / kReturn);
  return 0;
}

void NgramPace::Observe(int64_t matched, int64_t drafted, int64_t accepted) {
  for (int64_t i = 0; i < std::min(accepted + 1, drafted); ++i) {
    int32_t& estimate = AcceptanceAfter(matched + i);
    estimate += ((i < accepted ? kDraftUnit : 0) - estimate) / kNewestOutcome;
  }
}

}  // namespace switchyard
