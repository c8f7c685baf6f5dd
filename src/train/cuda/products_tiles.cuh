// Tiles of grouped products on Hopper, and their stores: what products_wgmma.cu and products_fp8.cu
// share.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "train/cuda/launch.cuh"
#include "train/cuda/products_problem.h"

namespace switchyard::train::gpu::products {

namespace ptx = switchyard::cuda::ptx;

// Two blocks of a cluster have neighboring tiles along the columns of D and share A. Two consumer
// warpgroups with 64 rows of the tile each, and a producer.
constexpr int kBlockM = 128, kCluster = 2, kConsumers = 2;
constexpr int kThreads = 128 * (kConsumers + 1);

// Kernel arguments other than the tensor maps. D [m, n] per group: with ProductForm::kForward and
// kInputGradient, m is the number of rows of the group.
struct Arguments {
  const int32_t* begins;  // null: one group
  int groups;
  int64_t rows;
  int64_t m, n, inner;  // m: weight gradients only; inner: others only
  Array d;
  int64_t ldd, group_stride;
  bool accumulate;
};

__device__ __forceinline__ int64_t BeginOf(const Arguments& p, int group) {
  return p.begins != nullptr ? p.begins[group] : group == 0 ? 0 : p.rows;
}

// Computes first_tile [groups + 1] with one warp: the row tiles of the groups before each group.
__device__ __forceinline__ void CountRowTiles(const Arguments& p, int lane, int32_t* first_tile) {
  int before = 0;
  if (lane == 0) first_tile[0] = 0;
  for (int first = 0; first < p.groups; first += kWarp) {
    const int g = first + lane;
    int tiles = 0;
    if (g < p.groups)
      tiles = static_cast<int>((BeginOf(p, g + 1) - BeginOf(p, g) + kBlockM - 1) / kBlockM);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(~0u, tiles, distance);
      if (lane >= distance) tiles += other;
    }
    if (g < p.groups) first_tile[g + 1] = before + tiles;
    before += __shfl_sync(~0u, tiles, kWarp - 1);
  }
}

// The group of a row tile: first_tile[group] <= tile < first_tile[group + 1].
__device__ __forceinline__ int GroupOfTile(const int32_t* first_tile, int groups, int tile) {
  int low = 0, high = groups;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The code for Hopper. It is not compiled for other GPUs.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kWaveTiles = 16;  // row tiles per wave of tiles, for L2 reuse

struct Tile {
  int group;
  int64_t row, row_end;  // of D: in all rows, or of the group's weight
  int64_t column;        // of D
  int64_t inner_begin;   // weight gradients: first row of the group
  int64_t inner;         // length of the inner dimension
};

template <ProductForm kForm, int kBlockN>
__device__ __forceinline__ int TileCount(const Arguments& p, const int32_t* first_tile) {
  constexpr int kColumns = kBlockN * kCluster;
  const int pairs = static_cast<int>((p.n + kColumns - 1) / kColumns);
  if constexpr (kForm == ProductForm::kWeightGradient)
    return p.groups * static_cast<int>((p.m + kBlockM - 1) / kBlockM) * pairs;
  return first_tile[p.groups] * pairs;
}

// Tile number `index` of a block of the cluster. Order: waves of kWaveTiles row tiles by all
// columns, so that concurrent reads hit L2. Weight gradients: group by group.
template <ProductForm kForm, int kBlockN>
__device__ __forceinline__ Tile TileOf(const Arguments& p, const int32_t* first_tile, int index,
                                       int block_of_cluster) {
  constexpr int kColumns = kBlockN * kCluster;
  const int pairs = static_cast<int>((p.n + kColumns - 1) / kColumns);
  Tile tile;
  if constexpr (kForm == ProductForm::kWeightGradient) {
    const int row_tiles = static_cast<int>((p.m + kBlockM - 1) / kBlockM);
    tile.group = index / (row_tiles * pairs);
    const int in_group = index % (row_tiles * pairs);
    tile.row = int64_t{in_group % row_tiles} * kBlockM;
    tile.row_end = p.m;
    tile.column = int64_t{in_group / row_tiles} * kColumns + block_of_cluster * kBlockN;
    tile.inner_begin = BeginOf(p, tile.group);
    tile.inner = BeginOf(p, tile.group + 1) - tile.inner_begin;
  } else {
    const int first = index / (kWaveTiles * pairs) * kWaveTiles;
    const int height = min(kWaveTiles, first_tile[p.groups] - first);
    const int in_wave = index - first * pairs;
    const int row_tile = first + in_wave % height;
    tile.group = GroupOfTile(first_tile, p.groups, row_tile);
    tile.row = BeginOf(p, tile.group) + int64_t{row_tile - first_tile[tile.group]} * kBlockM;
    tile.row_end = BeginOf(p, tile.group + 1);
    tile.column = int64_t{in_wave / height} * kColumns + block_of_cluster * kBlockN;
    tile.inner_begin = 0;
    tile.inner = p.inner;
  }
  return tile;
}

// Adds four adjacent floats to memory without waiting for the old ones. Each element is added once
// per launch, so the sum does not depend on the order.
__device__ __forceinline__ void AddToMemory(float* to, float4 x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

// Element 4j + i of `sums` is row lane / 4 + 8 (i / 2) of the warp's 16 rows and column
// 8j + 2 (lane % 4) + i % 2. Two neighboring lanes exchange pairs of two adjacent blocks of eight
// columns, so that each has four adjacent columns of one block.
template <int kBlockN>
__device__ __forceinline__ void StoreFloats(const Arguments& p, const Tile& tile, int64_t row,
                                            int lane, const float (&sums)[kBlockN / 2]) {
  const bool odd = lane % 2 != 0;
  const int64_t first = tile.column + (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + lane / 4 + half * 8;
    float* d = static_cast<float*>(p.d.data) + tile.group * p.group_stride + r * p.ldd + first;
#pragma unroll
    for (int j = 0; j < kBlockN / 8; j += 2) {
      const float* even_block = &sums[4 * j + 2 * half];
      const float* odd_block = even_block + 4;
      const float x = __shfl_xor_sync(~0u, odd ? even_block[0] : odd_block[0], 1);
      const float y = __shfl_xor_sync(~0u, odd ? even_block[1] : odd_block[1], 1);
      if (r >= tile.row_end || first + 8 * j >= p.n) continue;  // n is a multiple of 8
      const float4 four = odd ? make_float4(x, y, odd_block[0], odd_block[1])
                              : make_float4(even_block[0], even_block[1], x, y);
      if (p.accumulate) {
        AddToMemory(d + 8 * j, four);
      } else {
        *reinterpret_cast<float4*>(d + 8 * j) = four;
      }
    }
  }
}

// Stages 64 columns at a time in shared memory, so that lanes store runs of 16 bytes. Each warp
// stages and stores its own 16 rows.
template <int kBlockN>
__device__ __forceinline__ void StoreRounded(const Arguments& p, const Tile& tile, int64_t row,
                                             int lane, uint8_t* staging,
                                             const float (&sums)[kBlockN / 2]) {
  const int in_warp = lane % 16;  // row whose address this lane provides
#pragma unroll
  for (int slab = 0; slab < kBlockN / 64; ++slab) {
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < 8; chunk += 2) {
      const float* x = &sums[(slab * 8 + chunk) * 4];
      const int place = (chunk + lane / 16) ^ (in_warp % 8);
      ptx::StoreMatrices(staging + in_warp * 128 + place * 16, PackPair(x[0], x[1]),
                         PackPair(x[2], x[3]), PackPair(x[4], x[5]), PackPair(x[6], x[7]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i * 4 + lane / 8, piece = lane % 8;
      const int64_t c = tile.column + slab * 64 + piece * 8;
      if (row + r >= tile.row_end || c >= p.n) continue;  // n is a multiple of 8
      const uint4 x = *reinterpret_cast<const uint4*>(staging + r * 128 + (piece ^ (r % 8)) * 16);
      auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.d.data) + (row + r) * p.ldd + c);
      *to = x;
    }
  }
}

#endif

}  // namespace switchyard::train::gpu::products
