// Medians, and CPU timing.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace switchyard::bench {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Requires at least one value. For an even number of values, returns the larger of the two middle
// ones.
inline double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Median seconds of one call of f, after a warm-up call. Calls f for `limit` seconds, but at least
// 3 and at most 1000 times. To exclude cache hits, f has to read different memory in each call.
// `between` runs after each call and is not timed.
template <typename F, typename Between>
double MedianSeconds(const F& f, const Between& between, double limit = 0.5) {
  f();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 || (SecondsSince(start) < limit && times.size() < 1000)) {
    const auto begin = Clock::now();
    f();
    times.push_back(SecondsSince(begin));
    between();
  }
  return Median(std::move(times));
}

template <typename F>
double MedianSeconds(const F& f) {
  return MedianSeconds(f, [] {});
}

}  // namespace switchyard::bench
