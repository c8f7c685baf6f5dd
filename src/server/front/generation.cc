#include "server/front/generation.h"

#include <algorithm>

namespace switchyard {

int64_t CountPromptAlternatives(const GenerationSpec& spec) {
  const LogprobParams& wanted = spec.logprob;
  if (!wanted.enabled || wanted.start < 0) return 0;
  const int64_t positions = static_cast<int64_t>(spec.input_ids.size()) - wanted.start;
  return std::max<int64_t>(0, positions) *
         (wanted.top + static_cast<int64_t>(wanted.token_ids.size()));
}

}  // namespace switchyard
