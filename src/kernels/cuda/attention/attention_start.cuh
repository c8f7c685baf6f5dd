// Launches of the tensor core attention kernels. Decode and prefill use different tile shapes. The
// grid is one-dimensional. If keys are not split, it has one block per tile (an upper bound of
// their number). Otherwise blocks are persistent, at most as many as are resident.
#pragma once

#include <algorithm>
#include <atomic>
#include <climits>

#include "kernels/cuda/attention/attention_tile.cuh"

namespace switchyard::cuda {

// Template argument of StartTiles for the kernel of attention_tile.cuh.
template <typename Shape_>
struct TiledKernel {
  using Shape = Shape_;
  static constexpr auto kFunction = TiledAttentionKernel<Shape>;
  static constexpr int kBytes = Shape::kBytes;
  static constexpr bool kPersistent = false;  // true: persistent blocks even if keys are not split
};

// Number of blocks of this kernel that are resident on the current device (occupancy × SMs).
template <typename Kernel>
cudaError_t ResidentBlocks(int* blocks) {
  static std::atomic<int> known[64];  // [device]; 0: not computed yet
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  *blocks = device < 64 ? known[device].load() : 0;
  if (*blocks > 0) return cudaSuccess;
  int processors = 0, each = 0;
  cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(Kernel::kFunction, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 Kernel::kBytes);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, Kernel::kFunction,
                                                          Kernel::Shape::kThreads, Kernel::kBytes);
  *blocks = processors * std::max(each, 1);
  if (error == cudaSuccess && device < 64) known[device] = *blocks;
  return error;
}

// Starts Kernel::kFunction with a TiledAttention and the arguments `more`.
//
// The launch covers sequences for which rows · (query heads per key-value head) is in [min_rows,
// max_rows]. Keys are split if there are fewer tiles than `waves` times the resident blocks. In
// decode, the first sequences form whole waves: every resident block gets the same number of their
// tiles. Among these, only long sequences (over whole_splits) are split. The other sequences are
// split, so that their tiles fill the last wave, unless they fill half of it anyway.
template <typename Kernel>
cudaError_t StartTilesOf(const AttentionLaunch& launch, int min_rows, int max_rows, int waves,
                         const PdlStream& chain, const auto&... more) {
  using Shape = typename Kernel::Shape;
  const SequenceTable& table = launch.table;
  const int group = launch.heads / launch.kv_heads;
  // `tiles` is an upper bound, which counts one partial tile per sequence.
  const bool decode = table.num_rows <= table.num_sequences && group <= Shape::kRows;
  const int64_t tiles =
      ((decode ? 0 : int64_t{table.num_rows} * group / Shape::kRows) + table.num_sequences) *
      launch.kv_heads;
  int resident = 0;
  if (const cudaError_t error = ResidentBlocks<Kernel>(&resident); error != cudaSuccess)
    return error;
  const int64_t most_keys = std::min<int64_t>(int64_t{table.max_pages} * table.page_size, INT_MAX);
  const int64_t most_splits = Shape::kSplits.Of(static_cast<int>(most_keys)) + 1;
  const bool split = most_splits > 1 && tiles < int64_t{waves} * resident;
  // A wave that is at least half full is not split: its blocks share the memory bandwidth.
  const int64_t waves_of_whole = (tiles + resident / 2) / resident;
  const int64_t whole_sequences =
      decode ? std::min(tiles, waves_of_whole * resident) / launch.kv_heads : 0;
  constexpr int64_t kSlotFloats = int64_t{Shape::kRows} * (Shape::kVDim + 2);
  const int64_t slots =
      split ? std::min<int64_t>(launch.scratch_floats / kSlotFloats, INT_MAX / 2) : 0;
  const TiledAttention p = {
      .launch = launch,
      .schedule = {.rows = table.rows,
                   .kv_len = table.kv_len,
                   .num_sequences = table.num_sequences,
                   .group = group,
                   .kv_heads = launch.kv_heads,
                   .window = launch.window,
                   .chunk = launch.chunk,
                   .tile_rows = Shape::kRows,
                   .splits = Shape::kSplits,
                   .whole_sequences = static_cast<int>(whole_sequences),
                   .whole_splits = std::max(1, static_cast<int>(4 * tiles / resident)),
                   .min_rows = min_rows,
                   .max_rows = max_rows,
                   .slots = static_cast<int>(slots)},
      .states = reinterpret_cast<float2*>(launch.scratch + slots * Shape::kRows * Shape::kVDim),
      .parts = launch.scratch};
  // If max_rows is at most the rows of a tile, each sequence of this launch has one tile per
  // key-value head. Another launch then covers sequences with more rows.
  const int64_t most_tiles =
      max_rows <= Shape::kRows ? int64_t{table.num_sequences} * launch.kv_heads : tiles;
  const int64_t blocks = slots > 0             ? std::min<int64_t>(resident, tiles * most_splits)
                         : Kernel::kPersistent ? std::clamp<int64_t>(most_tiles, 1, resident)
                                               : std::max<int64_t>(most_tiles, 1);
  const cudaError_t error = LaunchWithPdl(Kernel::kFunction, dim3(static_cast<unsigned>(blocks)),
                                          Shape::kThreads, Kernel::kBytes, chain, p, more...);
  if (error != cudaSuccess) return error;
  return slots > 0 ? StartMergeOfParts(p, chain) : cudaSuccess;
}
template <typename Shape>
cudaError_t StartTiles(const AttentionLaunch& launch, int min_rows, int max_rows, int waves,
                       const PdlStream& chain) {
  return StartTilesOf<TiledKernel<Shape>>(launch, min_rows, max_rows, waves, chain);
}

// Launches small tiles for sequences that fit in one small tile. start_large(min_rows) launches
// large tiles for the others. If num_rows <= num_sequences (decode: one row per sequence), only the
// small tiles are launched. Should a sequence then have more rows, the results are correct but
// slow.
template <typename Small>
cudaError_t StartTilesOfBothShapes(const AttentionLaunch& launch, const PdlStream& chain,
                                   const auto& start_large) {
  constexpr int kSmallWaves = 8;
  const bool small = launch.heads / launch.kv_heads <= Small::kRows;
  const bool large = !small || launch.table.num_rows > launch.table.num_sequences;
  if (small) {
    const cudaError_t error =
        StartTiles<Small>(launch, 1, large ? Small::kRows : INT_MAX, kSmallWaves, chain);
    if (error != cudaSuccess) return error;
  }
  return large ? start_large(small ? Small::kRows + 1 : 1) : cudaSuccess;
}

// Whether a block of the current device can have this much shared memory.
inline bool FitsSharedMemory(int bytes) {
  int device = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
             cudaSuccess &&
         bytes <= most;
}

}  // namespace switchyard::cuda
