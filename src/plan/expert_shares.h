// How the ranks of an EP group share the rows of the experts in a step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::plan {

// A value type.
struct ExpertShares {
  int ranks = 1;
  // [layers of the model, ranks] expected rows of a rank divided by the mean; 1 in dense layers.
  std::vector<float> shares;
  int64_t version = 0;  // differs between different shares of an engine

  std::span<const float> Layer(int layer) const {
    return std::span(shares).subspan(static_cast<size_t>(layer) * ranks, ranks);
  }
  double Most(int layer) const { return std::ranges::max(Layer(layer)); }

  // What random routing adds to the expected rows of the most loaded rank, divided by the mean
  // `rows` of a rank. The rows of a rank are taken as normal, with their mean as the variance. The
  // maximum of n such numbers exceeds their mean by about √(2 ln n) deviations. A rank whose mean
  // is below that of the most loaded one counts only in part: by the density of the difference.
  double Variation(int layer, double rows) const {
    if (rows <= 0) return 0;
    const double most = Most(layer);
    double near = 0;
    for (const float share : Layer(layer))
      near += std::exp(-(most - share) * (most - share) * rows / (2 * most));
    return std::sqrt(2 * std::log(std::max(1.0, near)) * most / rows);
  }
};

}  // namespace switchyard::plan
