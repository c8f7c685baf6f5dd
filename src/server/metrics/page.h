// Metrics in the text format of Prometheus, with histograms.
#pragma once

#include <prometheus/labels.h>
#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace switchyard::metrics {

// Bounds of histogram buckets. They equal those of SGLang's and vLLM's metrics, so that dashboards
// and alerts made for those servers work without changes.

// Bucket bounds of times, in seconds.
inline constexpr double kSglangFirstToken[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1,  2,   4,   6,
                                               8,   10,  20,  40,  60,  80, 100, 200, 400};
inline constexpr double kSglangInterToken[] = {
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060,
    0.080, 0.100, 0.200, 0.400, 0.600, 0.800, 1.000, 2.000, 4.000, 6.000, 8.000};
inline constexpr double kSglangLatency[] = {0.1, 0.2, 0.4, 0.6,  0.8,  1,   2,  4,
                                            6,   8,   10,  20,   40,   60,  80, 100,
                                            200, 400, 600, 1200, 1800, 2400};
inline constexpr double kSglangQueue[] = {0,   0.1,  0.2,  0.5,  1,    2,    3,    4,    5,
                                          10,  15,   20,   30,   40,   50,   60,   70,   80,
                                          90,  100,  200,  300,  400,  500,  600,  700,  800,
                                          900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000};
inline constexpr double kVllmFirstToken[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                             0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                             20,    40,    80,   160,  640,  2560};
inline constexpr double kVllmInterToken[] = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
inline constexpr double kVllmLatency[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

// Bucket bounds of token counts, and of completions per prompt (the request's `n`).
inline constexpr double kSglangTokens[] = {
    100,    300,    500,    700,    1000,   1500,    2000,    3000,    4000,    5000,
    6000,   7000,   8000,   9000,   10'000, 12'000,  15'000,  20'000,  22'000,  25'000,
    30'000, 35'000, 40'000, 66'000, 99'000, 132'000, 300'000, 600'000, 900'000, 1'100'000};
inline constexpr double kVllmCopies[] = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, 50, … up to `most`.
std::vector<double> OneTwoFive(int64_t most);

std::vector<double> Union(std::span<const double> a, std::span<const double> b);

// A histogram that threads update without locks.

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

// A page of metrics in the text format of Prometheus.

using Labels = prometheus::Labels;

// The values of one scrape. Each page has its own registry. A name may be added several times, with
// different labels.
class Page {
 public:
  void Gauge(const std::string& name, const std::string& help, const Labels& labels, double value);
  void Counter(const std::string& name, const std::string& help, const Labels& labels,
               double value);
  void Histogram(const std::string& name, const std::string& help, const Labels& labels,
                 const HistogramCounts& counts);
  std::string Text() const;

 private:
  // With Merge, registering a family again returns the existing one.
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
};

}  // namespace switchyard::metrics
