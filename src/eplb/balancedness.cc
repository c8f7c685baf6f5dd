#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "eplb/recorder_options.h"

namespace switchyard {

void BalancednessSum::Add(std::span<const int64_t> rank_count, int ranks) {
  for (size_t begin = 0; begin < rank_count.size(); begin += ranks) {
    const auto layer = rank_count.subspan(begin, ranks);
    const int64_t most = std::ranges::max(layer);
    if (most == 0) continue;
    const int64_t all = std::accumulate(layer.begin(), layer.end(), int64_t{0});
    sum += static_cast<double>(all) / ranks / static_cast<double>(most);
    rows += all;
    ++layers;
  }
}

double BalancednessOf(std::span<const int64_t> rank_count, int ranks) {
  BalancednessSum sum;
  sum.Add(rank_count, ranks);
  return sum.Mean();
}

void BalancednessWindows::Add(double balancedness) {
  const auto at = [this](int64_t pass) -> double& { return ring_[pass % kSizes.back()]; };
  for (size_t i = 0; i < kSizes.size(); ++i)
    sums_[i] += balancedness - (passes_ >= kSizes[i] ? at(passes_ - kSizes[i]) : 0.0);
  at(passes_++) = balancedness;
}

Balancedness BalancednessWindows::Get() const {
  if (passes_ == 0) return {};
  const auto mean = [this](size_t i) {
    return sums_[i] / static_cast<double>(std::min(passes_, kSizes[i]));
  };
  return {ring_[(passes_ - 1) % kSizes.back()], mean(0), mean(1), mean(2)};
}

std::string BalancednessLine(int64_t forward_pass_id, const Balancedness& balancedness,
                             int64_t physical_count_sum) {
  return fmt::format(
      "[Expert Balancedness] forward_pass_id={} current_pass_balancedness={:.3f} "
      "last_10_average_balancedness={:.3f} last_100_average_balancedness={:.3f} "
      "last_1000_average_balancedness={:.3f} gpu_physical_count_sum={}",
      forward_pass_id, balancedness.current, balancedness.last_10, balancedness.last_100,
      balancedness.last_1000, physical_count_sum);
}

}  // namespace switchyard
