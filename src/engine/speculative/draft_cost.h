// The cost of verifying a draft, for sources that choose their number of drafts by acceptance.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard {

// Probabilities and costs of drafts are integers in units of 1 / kDraftUnit. So all ranks choose
// the same drafts, whatever their compilers and CPUs.
constexpr int32_t kDraftUnit = 1 << 14;

// The time of one more row divided by the time of a step per sequence. A draft is worthwhile if the
// probability that it and the drafts before it are right exceeds this. `sequences`: number of
// sequences that decode in the step. Measured with models/yardling on two cores: 0.17 for one
// sequence, 0.75 for 32. Larger models read more weights in a step, so the cost is smaller.
constexpr int32_t CostOfDraft(int64_t sequences) {
  const auto more = static_cast<int32_t>(std::clamp<int64_t>(sequences, 1, 31) - 1);
  return kDraftUnit / 5 + more * kDraftUnit / 50;
}

}  // namespace switchyard
