#include "server/metrics/bounds.h"

#include <algorithm>
#include <iterator>

namespace switchyard::metrics {

std::vector<double> OneTwoFive(int64_t most) {
  std::vector<double> bounds;
  for (int64_t power = 1; power <= most; power *= 10) {
    for (const int64_t bound : {power, 2 * power, 5 * power})
      if (bound <= most) bounds.push_back(static_cast<double>(bound));
  }
  return bounds;
}

std::vector<double> Union(std::span<const double> a, std::span<const double> b) {
  std::vector<double> both;
  std::ranges::set_union(a, b, std::back_inserter(both));
  return both;
}

}  // namespace switchyard::metrics
