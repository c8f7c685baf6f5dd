// Tile sizes, tile order and shared memory layout of the many-rows GEMM.
#pragma once

#include "kernels/cuda/gemm/gemm_tiles.cuh"

namespace switchyard::cuda::many_rows {

constexpr int kBlockM = kManyRowsTokens;
constexpr int kCluster = 2;
constexpr int kConsumers = 2;  // consumer warpgroups, 64 rows of the tile each
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kWaveBlocks = 16;  // row blocks per wave of tiles, for L2 reuse

struct Fp8 {
  static constexpr bool kScaled = true;
  static constexpr int kBlockN = kManyRowsWeightsFp8, kStages = 4, kElementBytes = 1, kSlabs = 3;
};
struct Bf16 {
  static constexpr bool kScaled = false;
  static constexpr int kBlockN = kManyRowsWeightsBf16, kStages = 4, kElementBytes = 2, kSlabs = 2;
};

// A block's shared memory: pipeline stages between TMA and wgmma, and the output staging of D.
template <typename Format>
struct Shared {
  static constexpr int kSlabs = Format::kSlabs;  // slabs staged at a time
  alignas(1024) uint8_t a[Format::kStages][kBlockM * kGemmRowBytes];
  alignas(1024) uint8_t b[Format::kStages][Format::kBlockN * kGemmRowBytes];
  alignas(1024) uint8_t d[kConsumers][kSlabs][64 * 128];
  alignas(128) float a_scales[Format::kStages][Format::kScaled ? kBlockM : 32];
  alignas(8) uint64_t full[Format::kStages];
  uint64_t empty[Format::kStages];

  static constexpr uint32_t kStageBytes =
      sizeof(a[0]) + sizeof(b[0]) + (Format::kScaled ? sizeof(a_scales[0]) : 0);
};

// Kernel arguments other than the tensor maps.
struct Kernel {
  const float* b_scales;
  const float* bias;
  void* d;
  int64_t ldd;
  const int32_t* block_groups;  // null: all rows are in group 0
  int rows, n;
  int row_blocks, column_pairs, k_blocks;
  bool float_output, accumulate;
};

// Order of the tile pairs of clusters: kWaveBlocks row blocks by all columns, then the next row
// blocks, so that concurrent reads hit L2.
struct Tile {
  int row_block, column_block;
};
__device__ __forceinline__ Tile TileOf(const Kernel& p, int index, int block_of_cluster) {
  const int wave = index / (kWaveBlocks * p.column_pairs);
  const int first = wave * kWaveBlocks;
  const int height = min(kWaveBlocks, p.row_blocks - first);
  const int in_wave = index - first * p.column_pairs;
  return {first + in_wave % height, in_wave / height * kCluster + block_of_cluster};
}

__device__ __forceinline__ int GroupOf(const Kernel& p, const Tile& tile) {
  return p.block_groups ? p.block_groups[tile.row_block] : 0;
}

}  // namespace switchyard::cuda::many_rows
