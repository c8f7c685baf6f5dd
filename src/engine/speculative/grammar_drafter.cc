#include "engine/speculative/grammar_drafter.h"

#include <algorithm>

namespace switchyard {

void GrammarDrafter::Draft(std::span<const DraftPart> parts, int64_t limit) {
  const int64_t decoding =
      std::ranges::count_if(parts, [](const DraftPart& part) { return part.wanted > 0; });
  for (const DraftPart& part : parts) {
    Sequence& sequence = *part.sequence;
    sequence.drafts_forced = false;
    if (part.wanted == 0 || !sequence.grammar) continue;
    const int32_t most = acceptance_.Limit(sequence.forced_counts, decoding,
                                           static_cast<int32_t>(limit), sequence.forced_pace);
    const int64_t count = std::min<int64_t>(part.wanted, most);
    if (count <= 0) continue;
    sequence.drafts = sequence.grammar->Forced(count, sequence.output());
    sequence.drafts_forced = !sequence.drafts.empty();
  }
}

}  // namespace switchyard
