#include "engine/speculative/ngram_drafter.h"

#include <algorithm>

namespace switchyard {

void NgramDrafter::Draft(std::span<const DraftPart> parts, int64_t limit) {
  for (const DraftPart& part : parts) {
    const int64_t count = std::min(part.wanted, limit);
    if (count <= 0) continue;
    Sequence& sequence = *part.sequence;
    if (!sequence.ngrams) sequence.ngrams = std::make_unique<NgramIndex>();
    sequence.drafts = sequence.ngrams->Guess(sequence.tokens, count);
  }
}

}  // namespace switchyard
