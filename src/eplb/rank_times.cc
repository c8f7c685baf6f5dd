#include "eplb/rank_times.h"

namespace switchyard {

std::vector<double> RankTimes(std::span<const int32_t> shares, double passes,
                              const std::vector<RankSlots>& living, const RankTopology& topology) {
  std::vector<double> times;
  times.reserve(living.size());
  for (const RankSlots& slots : living) {
    const RankCost cost = topology.CostOf(slots.rank);
    double time = 0;
    for (int p = slots.begin; p < slots.end; ++p)
      if (shares[p] > 0) time += ExpertTime(cost, shares[p], passes);
    times.push_back(time);
  }
  return times;
}

}  // namespace switchyard
