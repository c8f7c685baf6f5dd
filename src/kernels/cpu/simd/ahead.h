// Where a tile's weights will be read some bytes later: N streams, one for each weight row of the
// tile, each going on N rows further when its row ends.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// kBytes of all streams together. No round that begins beyond a task's last row is asked for, which
// another thread may be reading. V: the vector type of an instruction set (kernels/cpu/leaves.h).
template <class V, int N, int64_t kBytes>
struct Ahead {
  int64_t turn;         // byte of a row from which the place is one round of rows further
  int64_t here, there;  // bytes to it before that and after; 0 where there is none

  // Rows of `row_bytes`, `stride` bytes apart, `left` of them from the tile's first one on.
  Ahead(int64_t row_bytes, int64_t stride, int64_t left) {
    constexpr int64_t kEach = kBytes / N;
    if (row_bytes < 1) row_bytes = 1;  // a few columns of 4 bits
    const int64_t rows = kEach / row_bytes * N, column = kEach % row_bytes;
    turn = row_bytes - column;
    here = rows < left ? rows * stride + column : 0;
    there = rows + N < left ? (rows + N) * stride + column - row_bytes : 0;
  }
  int64_t Of(int64_t at) const { return at < turn ? here : there; }
};

}  // namespace switchyard::kernels::cpu::simd
