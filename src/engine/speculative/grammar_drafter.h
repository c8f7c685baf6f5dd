// Drafts from grammars (jump-forward decoding).
#pragma once

#include "engine/speculative/drafter.h"

namespace switchyard {

// Proposes the text that the grammar of a request forces, and sets Sequence::drafts_forced. Other
// requests get no drafts. Needs no weights and no communication.
class GrammarDrafter : public Drafter {
 public:
  void Draft(std::span<const DraftPart> parts, int64_t limit) override;
};

}  // namespace switchyard
