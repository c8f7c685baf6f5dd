// The number of prompt rows in a step.
#pragma once

#include <cstdint>

#include "engine/scheduler/sequence.h"

namespace switchyard {

// The remaining budget of one step for prompt rows.
struct PrefillBudget {
  int64_t rows = 0;
  int64_t logit_rows = 0;      // bounds the memory of prompt logprobs
  bool whole_prompts = false;  // --chunked-prefill-size -1
  // --enable-dynamic-chunking: the rows of a step have at most the cost of a first chunk, so a
  // later chunk of a long prompt has fewer rows. The cost of a row is that of its weights, 1, and
  // that of its attention, one for each `keys` keys before it. 0: costs are not limited.
  double keys = 0;
  double cost = 0;                 // that is left
  int64_t least_rows = 0;          // of the first prompt of the step, whatever they cost
  const KvCache* cache = nullptr;  // passes end between its chunks; null: anywhere
};

// The cost of `rows` rows after `before` rows of the same sequence. 0 if `keys` is 0.
double ChunkCost(int64_t before, int64_t rows, double keys);

// The number of rows of the sequence's pending prompt that fit the budget, possibly 0.
int64_t PromptChunk(const Sequence& sequence, const PrefillBudget& budget);
void Spend(const Sequence& sequence, int64_t rows, PrefillBudget& budget);

}  // namespace switchyard
