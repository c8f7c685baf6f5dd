// Division of sizes into units.
#pragma once

#include <cstdint>

namespace switchyard {

// The number of units of `unit` that hold n ≥ 0 items, where unit > 0.
constexpr int64_t CeilDiv(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
// The smallest multiple of `unit` that is at least n.
constexpr int64_t RoundUp(int64_t n, int64_t unit) { return CeilDiv(n, unit) * unit; }

}  // namespace switchyard
