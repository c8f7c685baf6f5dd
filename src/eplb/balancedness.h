// Balancedness of rank loads, pass by pass.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eplb/recorder_options.h"

namespace switchyard {

// rank_count [layers, ranks] → mean over layers of (mean / max over ranks); 1 if all ranks have
// equal load. Skips layers without rows; returns 1 if all are skipped.
double BalancednessOf(std::span<const int64_t> rank_count, int ranks);

// Moving averages over the last 10, 100 and 1000 passes. A value type.
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

// The log line in SGLang's format, so that existing parsers work.
std::string BalancednessLine(int64_t forward_pass_id, const Balancedness& balancedness,
                             int64_t physical_count_sum);

}  // namespace switchyard
