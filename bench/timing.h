// Medians, and the time of something on the CPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace switchyard::bench {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of one value at least; of an even number the upper of the two in the middle.
inline double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Seconds of one call of f: the median, after one to warm up, of as many as fit into half a second,
// but 3 to 1000. What f reads has to be elsewhere in memory each time where caches must not help.
// After each call of f comes one of `between`, which is not timed.
template <typename F, typename Between>
double MedianSeconds(const F& f, const Between& between) {
  f();
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < 3 || (SecondsSince(start) < 0.5 && times.size() < 1000)) {
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
