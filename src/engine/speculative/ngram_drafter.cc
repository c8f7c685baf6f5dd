#include "engine/speculative/ngram_drafter.h"

#include <algorithm>

namespace switchyard {

void NgramDrafter::Draft(std::span<const DraftPart> parts, int64_t limit) {
  const auto wants = [](const DraftPart& part) { return part.wanted > 0; };
  const int32_t cost = CostOfDraft(std::ranges::count_if(parts, wants));
  for (const DraftPart& part : parts) {
    Sequence& sequence = *part.sequence;
    if (sequence.ngrams) Observe(part, *sequence.ngrams);
    const int64_t most = std::min(part.wanted, limit);
    if (most <= 0) continue;
    if (!sequence.ngrams) sequence.ngrams = std::make_unique<NgramState>();
    Propose(cost, most, *sequence.ngrams, sequence);
  }
}

void NgramDrafter::Observe(const DraftPart& part, NgramState& state) {
  // Prompt rows: the sequence was retracted, and its drafts were discarded.
  if (part.decoding) state.pace.Observe(state.matched, state.drafted, part.rows - 1);
  state.drafted = 0;
}

void NgramDrafter::Propose(int32_t cost, int64_t most, NgramState& state, Sequence& sequence) {
  sequence.drafts.clear();
  const NgramIndex::Match match = state.index.Find(sequence.tokens);
  if (match.end == 0) return;
  const int64_t count = state.pace.Limit(match.length, cost, most);
  sequence.drafts = NgramIndex::Continue(sequence.tokens, match, count);
  if (sequence.grammar)
    sequence.drafts.resize(sequence.grammar->CountAllowed(sequence.drafts, sequence.output()));
  state.matched = match.length;
  state.drafted = std::ssize(sequence.drafts);
}

}  // namespace switchyard
