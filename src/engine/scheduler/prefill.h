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
};

// The number of rows of the sequence's pending prompt that fit the budget, possibly 0.
int64_t PromptChunk(const Sequence& sequence, const PrefillBudget& budget);
void Spend(const Sequence& sequence, int64_t rows, PrefillBudget& budget);

}  // namespace switchyard
