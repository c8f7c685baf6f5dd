// Asking memory for rows that are read soon, a few lines at a time.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// How near __builtin_prefetch brings what will be read: into the second cache. The first one is
// full of what is being multiplied, and what came there early would be gone before its turn.
constexpr int kToSecondCache = 2;
constexpr int64_t kLineBytes = 64;

// Rows that are asked for line by line between products, as evenly as products go: a core has no
// more requests under way than it has places for, and drops the rest.
struct RowRequests {
  static constexpr int64_t kWhole = 1 << 16;  // a line, of `due` and `each`
  // In loops whose rounds are short only every kSparse-th one is a step.
  static constexpr int64_t kSparse = 4;

  const char* const* row = nullptr;
  int64_t rows = 0, bytes = 0, at = 0;
  int64_t due = 0, each = 0;  // lines that are due, and that become so with each step

  // All are always inline: a copy of its own could be that of another instruction set (leaves.h).
  [[gnu::always_inline]] RowRequests() {}
  // `count` rows of `row_bytes` in `steps` steps.
  [[gnu::always_inline]] RowRequests(const char* const* first, int64_t count, int64_t row_bytes,
                                     int64_t steps)
      : row(first), rows(count), bytes(row_bytes) {
    const int64_t lines = (row_bytes + kLineBytes - 1) / kLineBytes * count;
    each = steps > 0 ? lines * kWhole / steps + 1 : 0;
  }

  [[gnu::always_inline]] void Step() {
    for (due += each; due >= kWhole && rows > 0; due -= kWhole) {
      __builtin_prefetch(*row + at, 0, kToSecondCache);
      at += kLineBytes;
      if (at < bytes) continue;
      at = 0;
      ++row;
      --rows;
    }
  }
};

}  // namespace switchyard::kernels::cpu::simd
