// Tiles of the GEMM of few rows: their order, and the stages in shared memory that they pass.
#pragma once

#include "kernels/cuda/gemm_tiles.cuh"

namespace switchyard::cuda::few_rows {

constexpr int kMaxStages = 32;
constexpr int kSharedBytes = 232448;  // all that a block can have
constexpr int kMaxTokens = kFewRowsMaxTokens;
constexpr int kBoxTokens = 64, kSmallBoxTokens = 16;
constexpr int kScaleBytes = 1024;    // of a stage: scales of its tokens
constexpr int kStagedRowBytes = 48;  // 16 bfloat16, and no two of eight rows in the same banks

// What the kernel is given beside tensor maps.
struct Kernel {
  const float* b_scales;
  const float* bias;
  void* d;
  int64_t ldd;
  const int32_t* group_begins;
  const int32_t* group_rows;  // null: one group of `rows`
  bool groups_known;          // before the kernel ahead has ended
  int rows, n, groups;
  int k_blocks;      // steps of 128 bytes
  int weight_rows;   // of a block's tile
  int column_tiles;  // of a cluster
  bool float_output, accumulate;
};

// Shared memory behind the ring of stages, then what GroupList points to.
struct Header {
  uint8_t staged[8][16 * kStagedRowBytes];  // of each warp that multiplies
  uint64_t full[kMaxStages], empty[kMaxStages];
  int longest;  // the most tokens of a tile
  int groups;   // that have rows
};

// Those groups, in ascending order. Decoding leaves most experts without rows, and looking at each
// of them for every tile takes microseconds.
struct GroupList {
  int32_t *rows, *begins, *numbers;  // [count]
};
constexpr int kGroupListBytes = 3 * sizeof(int32_t);  // of a group

// Leaves groups without rows out of a list of all `groups`, whose numbers are not there yet. Called
// by the first warp; other threads may read once the block has met.
__device__ __forceinline__ void KeepGroupsWithRows(Header& header, const GroupList& list,
                                                   int groups) {
  const int lane = threadIdx.x;
  int count = 0;
  for (int first = 0; first < groups; first += 32) {
    const int g = first + lane;
    const int rows = g < groups ? list.rows[g] : 0, begin = g < groups ? list.begins[g] : 0;
    const unsigned there = __ballot_sync(~0u, rows > 0);
    __syncwarp();  // all have read what is written now
    if (rows > 0) {
      const int to = count + __popc(there & ((1u << lane) - 1));
      list.rows[to] = rows;
      list.begins[to] = begin;
      list.numbers[to] = g;
    }
    count += __popc(there);
  }
  if (lane == 0) header.groups = count;
}

// What stages hold: tiles of weights, then of tokens, then scales of tokens. Where weights are
// fewer than the 64 rows that wgmma reads, what follows them is read too, for sums that nobody
// uses.
struct Stages {
  uint8_t* memory;
  int weight_bytes, bytes, count;
  uint64_t *full, *empty;
};

// The side of wgmma that so many tokens need.
__device__ __forceinline__ int TokensOfTile(int tokens) {
  if (tokens <= 32) return tokens <= 16 ? 16 : 32;
  if (tokens > 64) return (tokens + 31) / 32 * 32;
  return 64;
}

// One tile of a cluster: up to kMaxTokens rows of a group by weight_rows of each block.
struct Tile {
  int group = 0, row = 0, tokens = 0, column = 0;
};

// Goes through tiles in ascending order: groups, in them columns, in them parts of its rows, which
// read the same weights at about the same time.
class Walk {
 public:
  __device__ Walk(const Kernel& p, const Header& header, const GroupList& list)
      : column_tiles_(p.column_tiles), count_(header.groups), list_(list) {}

  __device__ __forceinline__ bool Find(int index, Tile& tile) {
    for (; next_ < count_; ++next_) {
      const int rows = list_.rows[next_], parts = (rows + kMaxTokens - 1) / kMaxTokens;
      const int tiles = parts * column_tiles_, in_group = index - first_;
      if (in_group < tiles) {
        const int part = in_group % parts;
        tile = {.group = list_.numbers[next_],
                .row = list_.begins[next_] + part * kMaxTokens,
                .tokens = min(rows - part * kMaxTokens, kMaxTokens),
                .column = in_group / parts};
        return true;
      }
      first_ += tiles;
    }
    return false;
  }

 private:
  const int column_tiles_, count_;
  const GroupList list_;
  int next_ = 0, first_ = 0;
};

}  // namespace switchyard::cuda::few_rows
