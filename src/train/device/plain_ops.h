// Elements of plain operations, shared by their sources.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace switchyard::train::plain {

inline float Load(float x) { return x; }
inline float Load(BF16 x) { return ToFloat(x); }
template <typename C>
C Rounded(float x) {
  if constexpr (std::is_same_v<C, BF16>) {
    return ToBF16(x);
  } else {
    return x;
  }
}

// Σ a[i · a_step] · b[i · b_step], one chain of additions in ascending order.
template <typename A, typename B>
float Dot(const A* a, int64_t a_step, const B* b, int64_t b_step, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += Load(a[i * a_step]) * Load(b[i * b_step]);
  return sum;
}

constexpr int64_t kGrain = 8;  // rows of a task

}  // namespace switchyard::train::plain
