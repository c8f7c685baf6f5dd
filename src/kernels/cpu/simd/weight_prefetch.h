// Prefetch addresses of a tile's weights. A tile has N streams, one per weight row; at the end of
// its row each stream continues N rows further.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu::simd {

// Byte offset from the weight row at `first` to the row that comes `row` rows later. Rows are
// `stride` bytes apart and are processed in blocks of `block` rows. The task has `left` rows from
// `first` on. After the task's last block, rows are those of the next task, whose first row is at
// `next`, so that the next task does not start with a stall. Returns 0 there if `next` is null: the
// rows may belong to another thread. V: the vector type of an instruction set
// (kernels/cpu/kernel_table.h).
template <class V>
[[gnu::always_inline]] inline int64_t PrefetchRowOffset(int64_t row, int64_t block, int64_t stride,
                                                        int64_t left, const void* first,
                                                        const void* next) {
  if (row < left) return row * stride;
  if (next == nullptr) return 0;
  const auto far = reinterpret_cast<intptr_t>(next) - reinterpret_cast<intptr_t>(first);
  return far + (row - (left + block - 1) / block * block) * stride;
}

// Prefetch addresses for a distance of kBytes over all N streams together. For the parameters see
// PrefetchRowOffset.
template <class V, int N, int64_t kBytes>
struct WeightPrefetch {
  int64_t turn;         // from this byte of a row on, the target is N rows further
  int64_t here, there;  // offset to the target before `turn`, and from `turn` on; 0: none

  // `first`: the tile's first row, of `row_bytes` bytes.
  WeightPrefetch(int64_t row_bytes, int64_t stride, int64_t left, const void* first = nullptr,
                 const void* next = nullptr) {
    constexpr int64_t kEach = kBytes / N;
    if (row_bytes < 1) row_bytes = 1;  // a single column of 4 bits, rounded down to 0
    const int64_t rows = kEach / row_bytes * N, column = kEach % row_bytes;
    turn = row_bytes - column;
    const auto at = [&](int64_t row, int64_t byte) __attribute__((always_inline))->int64_t {
      if (row >= left && next == nullptr) return 0;
      return PrefetchRowOffset<V>(row, N, stride, left, first, next) + byte;
    };
    here = at(rows, column);
    there = at(rows + N, column - row_bytes);
  }
  int64_t Of(int64_t at) const { return at < turn ? here : there; }
};

// Prefetch in turns: several tiles of x share a block of weight rows, and each prefetches part of a
// later block. All of them then multiply while memory responds. If only the first tile prefetched,
// it would stall on memory, and memory would idle during the other tiles: 7 to 12 rows of x in
// bfloat16 were 5 to 15 % slower.
struct PrefetchTurns {
  // Byte offset from a weight to the same column of the later block. 0 if there is none: the
  // prefetch then hits the line being read, which costs next to nothing.
  int64_t ahead = 0;
  int64_t own = 0;  // this tile prefetches every `tiles`-th line of a row, from this one on
  int64_t tiles = 1;
};
constexpr int64_t kPrefetchInTurns =
    -1;  // kAhead of tiles that get the distance from PrefetchTurns

// The value of PrefetchTurns::ahead for a block of `rows` rows that starts at `first`. The distance
// is a number of whole blocks with at least kBytes in total.
template <class V, int64_t kBytes>
int64_t PrefetchBlockOffset(int64_t rows, int64_t row_bytes, int64_t stride, int64_t left,
                            const void* first, const void* next) {
  const int64_t block = row_bytes > 0 ? rows * row_bytes : 1;
  const int64_t further = (kBytes + block - 1) / block * rows;
  return PrefetchRowOffset<V>(further, rows, stride, left, first, next);
}

// Selects the lines of a row that a tile prefetches.
template <int64_t kAhead>
struct PrefetchLines {
  int64_t wait;
  [[gnu::always_inline]] explicit PrefetchLines(const PrefetchTurns& turns) : wait(turns.own) {}
  // Whether to prefetch the next line. Called once per line, in order.
  [[gnu::always_inline]] bool Next(const PrefetchTurns& turns) {
    if (kAhead >= 0) return kAhead > 0;
    if (--wait >= 0) return false;
    wait = turns.tiles - 1;
    return true;
  }
};

}  // namespace switchyard::kernels::cpu::simd
