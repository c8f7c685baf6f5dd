#include "engine/scheduler/prefill.h"

#include <algorithm>

namespace switchyard {

int64_t PromptChunk(const Sequence& sequence, const PrefillBudget& budget) {
  int64_t rows = std::min(sequence.pending(), budget.rows);
  if (budget.whole_prompts && rows < sequence.pending()) return 0;
  if (sequence.LogitRows(rows).size() <= budget.logit_rows) return rows;
  // Only the last row needs logits, and the budget has no logit row left. So all rows but the last
  // fit.
  if (!sequence.needs_many_rows()) return rows - 1;
  // Rows before the first logit row do not count against the budget.
  return sequence.LogitRows(rows).first - sequence.computed + budget.logit_rows;
}

void Spend(const Sequence& sequence, int64_t rows, PrefillBudget& budget) {
  budget.rows -= rows;
  budget.logit_rows -= sequence.LogitRows(rows).size();
}

}  // namespace switchyard
