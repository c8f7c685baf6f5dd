// Where a tile's weights will be read some bytes later: N streams, one for each weight row of the
// tile, each going on N rows further when its row ends.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// kBytes of all streams together. Beyond a task's last row those of the task that comes next are
// asked for, so that it does not begin by waiting, or nothing where that is not known: another
// thread may be reading there. V: the vector type of an instruction set (kernels/cpu/leaves.h).
template <class V, int N, int64_t kBytes>
struct Ahead {
  int64_t turn;         // byte of a row from which the place is one round of rows further
  int64_t here, there;  // bytes to it before that and after; 0 where there is none

  // Rows of `row_bytes`, `stride` bytes apart, `left` of them from the tile's first one on, which
  // lies at `first`; then those at `next`, if not null.
  Ahead(int64_t row_bytes, int64_t stride, int64_t left, const void* first = nullptr,
        const void* next = nullptr) {
    constexpr int64_t kEach = kBytes / N;
    if (row_bytes < 1) row_bytes = 1;  // a few columns of 4 bits
    const int64_t rows = kEach / row_bytes * N, column = kEach % row_bytes;
    turn = row_bytes - column;
    const int64_t rounds_left = (left + N - 1) / N * N;
    const auto at = [&](int64_t row, int64_t byte) __attribute__((always_inline))->int64_t {
      if (row < left) return row * stride + byte;
      if (next == nullptr) return 0;
      const auto far = reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(first);
      return far + (row - rounds_left) * stride + byte;
    };
    here = at(rows, column);
    there = at(rows + N, column - row_bytes);
  }
  int64_t Of(int64_t at) const { return at < turn ? here : there; }
};

}  // namespace switchyard::kernels::cpu::simd
