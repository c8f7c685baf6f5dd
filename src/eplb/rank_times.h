// The times of ranks with their own costs, for a division of a layer's experts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// Expected number of passes, out of `passes`, in which an expert has rows, if it has `rows` rows in
// all of them. With one pass, a fraction of a row counts as the probability of a row. With several
// passes, rows are spread over them at random.
inline double PassesWithRows(double rows, double passes) {
  if (passes <= 1) return std::min(1.0, rows);
  return passes * -std::expm1(-rows / passes);
}

// Time of an expert with `rows` rows in `passes` passes on a rank with this cost.
inline double ExpertTime(const RankCost& cost, double rows, double passes) {
  return rows * cost.row + PassesWithRows(rows, passes) * cost.expert;
}

// [bins] the time of each living rank, if slot p has shares[p] rows in `passes` passes.
std::vector<double> RankTimes(std::span<const int32_t> shares, double passes,
                              const std::vector<RankSlots>& living, const RankTopology& topology);

}  // namespace switchyard
