#include "train/run/balance.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace switchyard::train {

void Balance::Add(std::span<const float> loads) {
  const double most = *std::ranges::max_element(loads);
  const double mean =
      std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  const double even = most > 0.0 ? mean / most : 1.0;
  layers += 1.0;
  sum += even;
  worst = std::min(worst, even);
  dead += static_cast<double>(std::ranges::count(loads, 0.0f));
}

Balance Balance::OfAllStages(Collectives& world, int stages) const {
  std::vector<Balance> ranks(static_cast<size_t>(world.size()));
  world.AllGatherV(this, ranks.data(), std::vector<size_t>(ranks.size(), sizeof *this));
  const double ranks_of_stage = static_cast<double>(world.size()) / stages;
  Balance all;
  for (const Balance& one : ranks) {
    all.layers += one.layers / ranks_of_stage;
    all.sum += one.sum / ranks_of_stage;
    all.worst = std::min(all.worst, one.worst);
    all.dead += one.dead / ranks_of_stage;
  }
  return all;
}

std::map<std::string, double> Balance::Figures() const {
  if (layers == 0.0) return {};
  return {{"balancedness", sum / layers}, {"balancedness_worst", worst}, {"dead_experts", dead}};
}

}  // namespace switchyard::train
