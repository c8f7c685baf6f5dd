// Software prefetch of upcoming rows, a few cache lines per iteration.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// Locality hint of __builtin_prefetch: into L2. L1 holds the current operands, and lines prefetched
// there would be evicted before use.
constexpr int kPrefetchToL2 = 2;
constexpr int64_t kLineBytes = 64;

// Prefetches rows line by line between products, at an even rate: a core drops prefetches beyond
// its limit of outstanding requests.
struct RowPrefetch {
  static constexpr int64_t kFixedPointLine =
      1 << 16;  // fixed-point unit of `due` and `each`: one line
  // Short loops call Step only in every kStepInterval-th iteration.
  static constexpr int64_t kStepInterval = 4;

  const char* const* row = nullptr;
  int64_t rows = 0, bytes = 0, at = 0;
  int64_t due = 0, each = 0;  // lines due now, and added per step

  // Always inline: an out-of-line copy could be compiled for another instruction set
  // (kernel_table.h).
  [[gnu::always_inline]] RowPrefetch() {}
  // Prefetches `count` rows of `row_bytes` bytes, evenly over `steps` calls of Step.
  [[gnu::always_inline]] RowPrefetch(const char* const* first, int64_t count, int64_t row_bytes,
                                     int64_t steps)
      : row(first), rows(count), bytes(row_bytes) {
    const int64_t lines = (row_bytes + kLineBytes - 1) / kLineBytes * count;
    each = steps > 0 ? lines * kFixedPointLine / steps + 1 : 0;
  }

  [[gnu::always_inline]] void Step() {
    for (due += each; due >= kFixedPointLine && rows > 0; due -= kFixedPointLine) {
      __builtin_prefetch(*row + at, 0, kPrefetchToL2);
      at += kLineBytes;
      if (at < bytes) continue;
      at = 0;
      ++row;
      --rows;
    }
  }
};

}  // namespace switchyard::kernels::cpu::simd
