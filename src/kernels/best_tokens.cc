#include "kernels/best_tokens.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>

#include "kernels/exp_sum.h"

namespace switchyard::kernels {

double SelectBestTokens(std::span<const float> logits, std::span<BestToken> best) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  auto end = best.begin();  // of the tokens found so far
  for (int32_t i = 0; i < std::ssize(logits); ++i) {
    const bool full = end == best.end();
    if (full && (best.empty() || !(logits[i] > best.back().logit))) continue;
    const auto at = std::ranges::upper_bound(best.begin(), end, logits[i], std::ranges::greater(),
                                             &BestToken::logit);
    if (!full) ++end;
    std::move_backward(at, end - 1, end);
    *at = {.token = i, .logit = logits[i]};
  }
  std::fill(end, best.end(), BestToken{.token = -1, .logit = kNone});
  if (best.empty() || !std::isfinite(best.front().logit)) return 0.0;
  return ExpSum(logits, best.front().logit);
}

}  // namespace switchyard::kernels
