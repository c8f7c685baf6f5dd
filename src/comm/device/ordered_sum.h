// Element-wise sums in a fixed order. Internal to comm/device.
#pragma once

#include <cstddef>
#include <span>

namespace switchyard {

// out[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + …, in float32. `out` may be one of
// the sources; otherwise `out` and the sources do not overlap.
void SumInOrder(std::span<const float* const> sources, float* out, size_t count);

}  // namespace switchyard
