#include "comm/device/ordered_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace switchyard {
namespace {

constexpr size_t kBlock = 1024;  // floats of a partial sum: stays in L1

// The pragma states what the compiler cannot infer: `out` is one of the inputs or disjoint from
// both, so iterations are independent.
void Add(const float* a, const float* b, float* out, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

}  // namespace

void SumInOrder(std::span<const float* const> sources, float* out, size_t count) {
  if (sources.size() == 1) {
    if (out != sources[0]) std::memcpy(out, sources[0], count * sizeof(float));
    return;
  }
  std::array<float, kBlock> partial;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const float* left = sources[0] + begin;
    // Only the last sum is written to `out`, because `out` may be a source that is still needed.
    for (size_t r = 1; r + 1 < sources.size(); ++r) {
      Add(left, sources[r] + begin, partial.data(), n);
      left = partial.data();
    }
    Add(left, sources.back() + begin, out + begin, n);
  }
}

}  // namespace switchyard
