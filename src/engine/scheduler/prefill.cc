#include "engine/scheduler/prefill.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

// The number of rows after `before` rows that have the budget's cost: the root of a quadratic
// polynomial (ChunkCost).
int64_t RowsOfCost(int64_t before, const PrefillBudget& budget) {
  const double weight = budget.keys + static_cast<double>(before);
  const double root = std::sqrt(weight * weight + 2 * budget.keys * budget.cost);
  const auto rows = static_cast<int64_t>(2 * budget.keys * budget.cost / (weight + root));
  return std::max(rows, budget.least_rows);
}

}  // namespace

double ChunkCost(int64_t before, int64_t rows, double keys) {
  if (keys == 0) return 0;
  const auto n = static_cast<double>(rows);
  return n + n * (static_cast<double>(before) + n / 2) / keys;
}

namespace {

// The rows that fit the budget, if a pass may end anywhere.
int64_t RowsInBudget(const Sequence& sequence, const PrefillBudget& budget) {
  int64_t rows = std::min(sequence.pending(), budget.rows);
  if (budget.keys > 0 && std::isfinite(budget.keys))
    rows = std::min(rows, RowsOfCost(sequence.computed, budget));
  if (budget.whole_prompts && rows < sequence.pending()) return 0;
  if (sequence.LogitRows(rows).size() <= budget.logit_rows) return rows;
  // Only the last row needs logits, and the budget has no logit row left. So all rows but the last
  // fit.
  if (!sequence.needs_many_rows()) return rows - 1;
  // Rows before the first logit row do not count against the budget.
  return sequence.LogitRows(rows).begin - sequence.computed + budget.logit_rows;
}

}  // namespace

int64_t PromptChunk(const Sequence& sequence, const PrefillBudget& budget) {
  const int64_t rows = RowsInBudget(sequence, budget);
  if (budget.cache == nullptr) return rows;
  return budget.cache->WholeChunks(sequence.cache, sequence.computed, rows);
}

void Spend(const Sequence& sequence, int64_t rows, PrefillBudget& budget) {
  budget.rows -= rows;
  budget.cost = std::max(0.0, budget.cost - ChunkCost(sequence.computed, rows, budget.keys));
  budget.least_rows = 0;
  budget.logit_rows -= sequence.LogitRows(rows).size();
}

}  // namespace switchyard
