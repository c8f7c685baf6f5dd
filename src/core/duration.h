#pragma once

#include <chrono>
#include <cstdint>

namespace switchyard {

// Timeouts of flags are in seconds, those of waits in milliseconds; fractions are cut.
inline std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace switchyard
