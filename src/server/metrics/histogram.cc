#include "server/metrics/histogram.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace switchyard::metrics {
namespace {

std::vector<double> Sorted(std::vector<double> bounds) {
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(Sorted(std::move(bounds))), buckets_(bounds_.size() + 1) {}

void Histogram::Observe(double value, uint64_t count) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[bucket].fetch_add(count, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(count), std::memory_order_relaxed);
}

HistogramCounts Histogram::Read(std::span<const double> bounds) const {
  HistogramCounts counts{.bounds = {bounds.begin(), bounds.end()},
                         .buckets = std::vector<uint64_t>(bounds.size() + 1),
                         .sum = sum_.load(std::memory_order_relaxed)};
  size_t own = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    for (; own < bounds_.size() && bounds_[own] <= bounds[i]; ++own)
      counts.buckets[i] += buckets_[own].load(std::memory_order_relaxed);
    CHECK(own > 0 && bounds_[own - 1] == bounds[i]);
  }
  for (; own < buckets_.size(); ++own)
    counts.buckets.back() += buckets_[own].load(std::memory_order_relaxed);
  return counts;
}

}  // namespace switchyard::metrics
