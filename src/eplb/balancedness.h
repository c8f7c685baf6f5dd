// How evenly ranks are loaded, pass by pass.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eplb/recorder_options.h"

namespace switchyard {

// rank_count [layers, ranks] → mean over the layers of mean / max over ranks; 1 where all ranks
// have the same. Layers without rows do not count; 1 where there are none at all.
double BalancednessOf(std::span<const int64_t> rank_count, int ranks);

// Means over the last passes. A value.
class BalancednessWindows {
 public:
  void Add(double balancedness);
  Balancedness Get() const;

 private:
  static constexpr std::array<int64_t, 3> kSizes = {10, 100, 1000};

  std::vector<double> ring_ = std::vector<double>(kSizes.back());
  std::array<double, kSizes.size()> sums_{};
  int64_t passes_ = 0;
};

// SGLang's line, for whoever parses it.
std::string BalancednessLine(int64_t forward_pass_id, const Balancedness& balancedness,
                             int64_t physical_count_sum);

}  // namespace switchyard
