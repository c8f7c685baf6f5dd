// Drafts from grammars (jump-forward decoding).
#pragma once

#include "engine/speculative/drafter.h"
#include "engine/speculative/forced_pace.h"

namespace switchyard {

// Proposes the text that the grammar of a request forces, and sets Sequence::drafts_forced. Other
// requests get no drafts. A model that tokenizes such text in unusual ways gets few drafts
// (ForcedAcceptance). Needs no weights and no communication.
class GrammarDrafter : public Drafter {
 public:
  void Draft(std::span<const DraftPart> parts, int64_t limit) override;

 private:
  ForcedAcceptance acceptance_;
};

}  // namespace switchyard
