// Where a tile's weights will be read some bytes later: N streams, one for each weight row of the
// tile, each going on N rows further when its row ends.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// Bytes from a task's row at `first` to the one `row` rows further. Rows are multiplied `block` at
// a time and lie `stride` bytes apart, `left` of them from `first` on; after the last block come
// those of the task that is next, at `next`, so that it does not begin by waiting. 0 where that is
// not known (null): another thread may be reading there. V: the vector type of an instruction set
// (kernels/cpu/leaves.h).
template <class V>
[[gnu::always_inline]] inline int64_t RowAhead(int64_t row, int64_t block, int64_t stride,
                                               int64_t left, const void* first, const void* next) {
  if (row < left) return row * stride;
  if (next == nullptr) return 0;
  const auto far = reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(first);
  return far + (row - (left + block - 1) / block * block) * stride;
}

// kBytes of all streams together; rows as above.
template <class V, int N, int64_t kBytes>
struct Ahead {
  int64_t turn;         // byte of a row from which the place is one round of rows further
  int64_t here, there;  // bytes to it before that and after; 0 where there is none

  // `first`: the tile's first row, of `row_bytes`.
  Ahead(int64_t row_bytes, int64_t stride, int64_t left, const void* first = nullptr,
        const void* next = nullptr) {
    constexpr int64_t kEach = kBytes / N;
    if (row_bytes < 1) row_bytes = 1;  // a few columns of 4 bits
    const int64_t rows = kEach / row_bytes * N, column = kEach % row_bytes;
    turn = row_bytes - column;
    const auto at = [&](int64_t row, int64_t byte) __attribute__((always_inline))->int64_t {
      if (row >= left && next == nullptr) return 0;
      return RowAhead<V>(row, N, stride, left, first, next) + byte;
    };
    here = at(rows, column);
    there = at(rows + N, column - row_bytes);
  }
  int64_t Of(int64_t at) const { return at < turn ? here : there; }
};

// Several tiles of x meet the same block of weight rows, and take turns in asking for a later
// block: while memory answers, all of them multiply. A first tile that asked alone would wait for
// memory, and then memory for the others: 7 to 12 rows in bfloat16 were 5 to 15 % slower.
struct Turns {
  // Bytes from a weight to the same column of that block. 0: there is none, and what is asked for
  // is what is being read, which costs next to nothing.
  int64_t ahead = 0;
  int64_t own = 0;  // the tile asks for every `tiles`-th line of a row, from this one on
  int64_t tiles = 1;
};
constexpr int64_t kInTurns = -1;  // where a tile is told how many bytes ahead it asks

// Turns::ahead for a block of `rows` rows, the first at `first`: whole blocks, of kBytes together
// at least.
template <class V, int64_t kBytes>
int64_t BlocksAhead(int64_t rows, int64_t row_bytes, int64_t stride, int64_t left,
                    const void* first, const void* next) {
  const int64_t block = row_bytes > 0 ? rows * row_bytes : 1;
  const int64_t further = (kBytes + block - 1) / block * rows;
  return RowAhead<V>(further, rows, stride, left, first, next);
}

// Which lines of a row a tile asks for.
template <int64_t kAhead>
struct Lines {
  int64_t wait;
  [[gnu::always_inline]] explicit Lines(const Turns& turns) : wait(turns.own) {}
  // Of one line after the other.
  [[gnu::always_inline]] bool Next(const Turns& turns) {
    if (kAhead >= 0) return kAhead > 0;
    if (--wait >= 0) return false;
    wait = turns.tiles - 1;
    return true;
  }
};

}  // namespace switchyard::kernels::cpu::simd
