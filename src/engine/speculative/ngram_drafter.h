// Drafts from the request's own text (--speculative-algorithm NGRAM).
#pragma once

#include "engine/speculative/drafter.h"

namespace switchyard {

// Needs no weights and no communication. The index of a sequence is in Sequence::ngrams.
class NgramDrafter : public Drafter {
 public:
  void Draft(std::span<const DraftPart> parts, int64_t limit) override;
};

}  // namespace switchyard
