#include "bench/cuda/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace switchyard::bench {

std::vector<int32_t> ChooseExperts(int tokens, int experts, int slots, double popular,
                                   std::mt19937& random) {
  std::vector<int> order(experts);
  std::vector<int32_t> chosen;
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::uniform_real_distribution<double> uniform(1e-9, 1);
  for (int t = 0; t < tokens; ++t) {
    // The largest keys log(u) / weight are a sample without replacement (Efraimidis and Spirakis,
    // 2006, "Weighted random sampling with a reservoir").
    std::vector<std::pair<double, int32_t>> keys;
    for (int32_t e = 0; e < experts; ++e) {
      const double weight = popular > 0 ? std::exp(-order[e] / popular) : 1;
      keys.emplace_back(std::log(uniform(random)) / std::max(weight, 1e-12), e);
    }
    std::ranges::partial_sort(keys, keys.begin() + slots, std::ranges::greater());
    for (int j = 0; j < slots; ++j) chosen.push_back(keys[j].second);
  }
  return chosen;
}

std::vector<int32_t> RowsOfExperts(const std::vector<int32_t>& chosen, int experts) {
  std::vector<int32_t> rows(experts);
  for (const int32_t e : chosen) ++rows[e];
  return rows;
}

}  // namespace switchyard::bench
