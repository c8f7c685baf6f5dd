#pragma once

#include <chrono>
#include <cstdint>

namespace switchyard {

// Flags give timeouts in seconds; waits take them in milliseconds. Truncates fractions of a
// millisecond.
inline std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// The present time of steady_clock. Processes of one host have the same clock.
inline int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace switchyard
