#include "engine/speculative/grammar_drafter.h"

#include <algorithm>

namespace switchyard {

void GrammarDrafter::Draft(std::span<const DraftPart> parts, int64_t limit) {
  for (const DraftPart& part : parts) {
    Sequence& sequence = *part.sequence;
    sequence.drafts_forced = false;
    const int64_t count = std::min(part.wanted, limit);
    if (count <= 0 || !sequence.grammar) continue;
    sequence.drafts = sequence.grammar->Forced(count, sequence.output());
    sequence.drafts_forced = !sequence.drafts.empty();
  }
}

}  // namespace switchyard
