// Tile scheduler and shared memory pipeline of the few-rows GEMM.
#pragma once

#include "kernels/cuda/gemm/gemm_tiles.cuh"

namespace switchyard::cuda::few_rows {

constexpr int kMaxStages = 32;
constexpr int kSharedBytes = 232448;  // the maximum per block on Hopper
constexpr int kMaxTokens = kFewRowsMaxTokens;
constexpr int kBoxTokens = 64, kSmallBoxTokens = 16;
constexpr int kScaleBytes = 1024;    // token scales of a stage
constexpr int kStagedRowBytes = 48;  // 16 bfloat16 and padding: eight rows have no bank conflicts

// Kernel arguments other than the tensor maps.
struct Kernel {
  const float* b_scales;
  const float* bias;
  void* d;
  int64_t ldd;
  const int32_t* group_begins;
  const int32_t* group_rows;  // null: one group of `rows`
  bool groups_ready;          // GroupedGemmParams::groups_ready
  bool reads_once;            // no weight is read twice
  int rows, n, groups;
  int k_blocks;      // 128-byte steps along K
  int weight_rows;   // per block tile
  int column_tiles;  // cluster tiles along n
  bool float_output, accumulate;
};

// Shared memory after the pipeline stages; the arrays of ActiveGroups follow.
struct Header {
  uint8_t staged[8][16 * kStagedRowBytes];  // one buffer per consumer warp
  uint64_t full[kMaxStages], empty[kMaxStages];
  int longest;  // largest number of tokens in a tile
  int groups;   // groups with rows
};

// The groups with rows, in ascending order. In decode most experts have no rows, and scanning all
// of them for every tile takes microseconds.
struct ActiveGroups {
  int32_t *rows, *begins, *numbers;  // [count]
};
constexpr int kGroupListBytes = 3 * sizeof(int32_t);  // bytes per group

// Compacts a list of all `groups` to those with rows, and fills in their numbers. Called by the
// first warp; other threads may read after a block barrier.
__device__ __forceinline__ void CompactGroups(Header& header, const ActiveGroups& list,
                                              int groups) {
  const int lane = threadIdx.x;
  int count = 0;
  for (int first = 0; first < groups; first += 32) {
    const int g = first + lane;
    const int rows = g < groups ? list.rows[g] : 0, begin = g < groups ? list.begins[g] : 0;
    const unsigned there = __ballot_sync(~0u, rows > 0);
    __syncwarp();  // all reads precede the writes below
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

// A stage holds weight tiles, then token tiles, then token scales. With fewer than 64 weight rows,
// wgmma also reads the bytes after them, for sums that are not used.
struct Stages {
  uint8_t* memory;
  int weight_bytes, bytes, count;
  uint64_t *full, *empty;
};

// wgmma's N for a number of tokens.
__device__ __forceinline__ int TokensOfTile(int tokens) {
  if (tokens <= 32) return tokens <= 16 ? 16 : 32;
  if (tokens > 64) return (tokens + 31) / 32 * 32;
  return 64;
}

// One tile of a cluster: up to kMaxTokens rows of a group by weight_rows weights per block.
struct Tile {
  int group = 0, row = 0, tokens = 0, column = 0;
};

// Iterates over tiles in ascending order: by group, then column, then token part. Token parts read
// the same weights at about the same time.
class TileScheduler {
 public:
  __device__ TileScheduler(const Kernel& p, const Header& header, const ActiveGroups& list)
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
  const ActiveGroups list_;
  int next_ = 0, first_ = 0;
};

}  // namespace switchyard::cuda::few_rows
