// Drafts from the request's own text (--speculative-algorithm NGRAM).
#pragma once

#include "engine/speculative/drafter.h"

namespace switchyard {

// Needs no weights and no communication. The index of a sequence is in Sequence::ngrams.
//
// Acceptance comes in runs: an output copies a passage, then continues in its own words. So a
// sequence begins with one draft. If all drafts of a step are accepted, the next step has twice as
// many and one more; otherwise it has one more than were accepted.
class NgramDrafter : public Drafter {
 public:
  void Draft(std::span<const DraftPart> parts, int64_t limit) override;
};

}  // namespace switchyard
