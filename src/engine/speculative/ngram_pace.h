// The number of n-gram drafts, from the length of the repeated text and the acceptance so far.
#pragma once

#include <array>
#include <cstdint>

#include "engine/speculative/draft_cost.h"
#include "engine/speculative/ngram_index.h"

namespace switchyard {

// The acceptance of one sequence. It depends mostly on the length of the n-gram that occurred
// before: a sequence that copies a passage has repeated many tokens already. So each length has an
// estimate of its own. The i-th draft after an n-gram of L tokens follows an n-gram of L + i
// tokens, as it counts only if the drafts before it are right.
class NgramPace {
 public:
  NgramPace();

  // The number of drafts of the next step, at most `most`. `matched`: tokens of the n-gram
  // (NgramIndex::Match), at least NgramIndex::kShortest. `cost`: CostOfDraft.
  int64_t Limit(int64_t matched, int32_t cost, int64_t most);
  // Records the outcome of `drafted` drafts after an n-gram of `matched` tokens. The first
  // `accepted` ones were right.
  void Observe(int64_t matched, int64_t drafted, int64_t accepted);

 private:
  static constexpr int64_t kLengths = NgramIndex::kLongest - NgramIndex::kShortest + 1;

  int32_t& AcceptanceAfter(int64_t matched);

  // By the length of the n-gram, in units of 1 / kDraftUnit. The last entry includes longer ones.
  std::array<int32_t, kLengths> acceptance_;
};

// What NgramDrafter keeps of a sequence.
struct NgramState {
  NgramIndex index;
  NgramPace pace;
  int64_t matched = 0, drafted = 0;  // of the last step; drafted 0: it had no drafts
};

}  // namespace switchyard
