// A histogram that threads update without locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::metrics {

// Counts of a histogram at one time.
struct HistogramCounts {
  std::vector<double> bounds;     // upper bounds of the buckets, ascending
  std::vector<uint64_t> buckets;  // [bounds + 1] values in each bucket; the last one has no bound
  double sum = 0;                 // sum of all observed values
};

// Counts values in buckets. A bucket contains values up to its bound, the bound included. Any
// thread may call any member.
class Histogram {
 public:
  // `bounds` in any order; repeated bounds count once.
  explicit Histogram(std::vector<double> bounds);

  // Adds `value` `count` times.
  void Observe(double value, uint64_t count = 1);

  // Returns buckets with the given bounds, which must be a subset of the histogram's bounds. So one
  // histogram can be shown under several names with different buckets.
  HistogramCounts Read(std::span<const double> bounds) const;
  HistogramCounts Read() const { return Read(bounds_); }

 private:
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> buckets_;  // [bounds + 1]
  std::atomic<double> sum_{0};
};

}  // namespace switchyard::metrics
