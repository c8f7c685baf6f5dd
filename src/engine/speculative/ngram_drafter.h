// Drafts from the request's own text (--speculative-algorithm NGRAM).
#pragma once

#include "engine/speculative/drafter.h"
#include "engine/speculative/ngram_pace.h"

namespace switchyard {

// Needs no weights and no communication. The state of a sequence is in Sequence::ngrams. A step has
// as many drafts as are worth their rows, given the acceptance of the sequence (NgramPace) and the
// number of sequences that decode.
class NgramDrafter : public Drafter {
 public:
  void Draft(std::span<const DraftPart> parts, int64_t limit) override;

 private:
  // Records the outcome of the drafts of the last step.
  static void Observe(const DraftPart& part, NgramState& state);
  static void Propose(int32_t cost, int64_t most, NgramState& state, Sequence& sequence);
};

}  // namespace switchyard
