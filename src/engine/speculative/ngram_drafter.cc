#include "engine/speculative/ngram_drafter.h"

#include <algorithm>

namespace switchyard {

void NgramDrafter::Draft(std::span<const DraftPart> parts, int64_t limit) {
  for (const DraftPart& part : parts) {
    const int64_t count = std::min(part.wanted, limit);
    if (count <= 0) continue;
    Sequence& sequence = *part.sequence;
    if (!sequence.ngrams) sequence.ngrams = std::make_unique<NgramIndex>();
    // First the number of drafts of the last step. Set below to the maximum for the next step.
    int64_t& run = sequence.ngram_drafts;
    const int64_t accepted = part.decoding ? part.rows - 1 : 0;
    run = accepted < run ? accepted + 1 : 2 * run + 1;
    sequence.drafts = sequence.ngrams->Guess(sequence.tokens, std::min(count, run));
    if (sequence.grammar)
      sequence.drafts.resize(sequence.grammar->CountAllowed(sequence.drafts, sequence.output()));
    run = std::ssize(sequence.drafts);
  }
}

}  // namespace switchyard
