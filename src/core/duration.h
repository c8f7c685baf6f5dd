#pragma once

#include <chrono>
#include <cstdint>

namespace switchyard {

// Flags give timeouts in seconds; waits take them in milliseconds. Truncates fractions of a
// millisecond.
inline std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace switchyard
