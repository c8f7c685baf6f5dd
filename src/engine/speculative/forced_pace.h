// The number of forced drafts, from their acceptance so far.
#pragma once

#include <cstdint>

#include "engine/request.h"
#include "engine/speculative/draft_cost.h"

namespace switchyard {

// The state of one sequence.
struct ForcedPace {
  DraftCounts seen;  // outcomes that `acceptance` already includes
  // Decayed acceptance, in units of 1 / kDraftUnit, of drafts whose predecessors were right; −1: no
  // draft yet.
  int32_t acceptance = -1;
  int32_t pause = 0;   // steps without drafts after the next trial
  int32_t paused = 0;  // remaining steps of the current pause
};

// A draft is worthwhile if the probability that it and its predecessors are correct exceeds the
// cost of its row. So a model that tokenizes forced text in unusual ways, such as letter by letter,
// gets few drafts. One object for all sequences of a rank: new sequences start from the acceptance
// of the others.
class ForcedAcceptance {
 public:
  // The number of drafts in the next step of a sequence, given all its outcomes so far; at most
  // `most`. `sequences`: number of sequences that decode in that step.
  int32_t Limit(const DraftCounts& so_far, int64_t sequences, int32_t most, ForcedPace& pace);

 private:
  void Observe(int32_t drafted, int32_t accepted, ForcedPace& pace);

  // Mean acceptance over all sequences. Its initial value is for a model that writes the tokens of
  // its tokenizer.
  int32_t acceptance_ = kDraftUnit * 9 / 10;
};

}  // namespace switchyard
