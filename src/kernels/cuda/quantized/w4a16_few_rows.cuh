// Problem: the few-rows GEMM (gemm_few_rows.cu) with packed 4-bit weights. Consumer warpgroups
// unpack records of codes and scales to registers, from which wgmma takes its 64-row operand.
// Tiling: tile sizes, tile order, grid and epilogue are those of gemm_few_rows.cu.
// Pipeline: that of gemm_few_rows.cu; a stage is 128 columns of K.
// Measured on one H200, 32 groups of 1 to 4 rows, N 6144, K 7168, of 4.8 TB/s: MXFP4 45 to 49 %,
// int4 37 %, NVFP4 35 %. The number of instructions that unpack weights is the limit
// (docs/notes/gpu.md).
#pragma once

#include <algorithm>

#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_few_rows.cuh"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/quantized/w4a16_unpack.cuh"

namespace switchyard::cuda::w4a16 {

using few_rows::AcquireStage;
using few_rows::ActiveGroups;
using few_rows::CompactGroups;
using few_rows::Header;
using few_rows::kGroupListBytes;
using few_rows::kMaxStages;
using few_rows::kMaxTokens;
using few_rows::kSharedBytes;
using few_rows::Release;
using few_rows::Stages;
using few_rows::StoreBf16;
using few_rows::StoreFloats;
using few_rows::Tile;
using few_rows::TileScheduler;
using few_rows::TokensOfTile;

constexpr int kMapCount = 3;
struct Maps {
  CUtensorMap of[kMapCount];  // boxes of 64, 32 and 16 rows of A
};

// Kernel arguments other than the tensor maps. `few.k_blocks` counts the pipeline stages along K,
// of kW4A16Steps tiles of 64 columns each.
struct Kernel {
  few_rows::Kernel few;
  const uint8_t* records;
  const float* globals;
  int row_tiles;        // row tiles per group
  int64_t tile_bytes;   // records of 64 rows
  int64_t group_bytes;  // records of a group's matrix
  int first_row;
};

// The row tiles (64 weight rows each) of a block's tile: index of the first one, and their number.
struct RowTiles {
  int first, count;
};
__device__ __forceinline__ RowTiles RowTilesOf(const Kernel& p, const Tile& tile, int block,
                                               int cluster) {
  const int of_block = p.few.weight_rows / kW4A16Tile;
  const int first = (tile.column * cluster + block) * of_block;
  return {first, min(of_block, p.row_tiles - first)};
}

template <int kRecord>
__device__ __forceinline__ void ProduceWeights(const Kernel& p, const Stages& stages,
                                               TileScheduler walk, int block, int cluster) {
  constexpr int kBytes = kW4A16Steps * kRecord;
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const RowTiles rows = RowTilesOf(p, tile, block, cluster);
    const uint8_t* from = p.records + tile.group * p.group_bytes + rows.first * p.tile_bytes;
    for (int kb = 0; kb < p.few.k_blocks; ++kb, ring.Next(stages.count), from += kBytes) {
      uint8_t* to = AcquireStage(stages, ring, rows.count * kBytes);
      for (int i = 0; i < rows.count; ++i)
        ptx::LoadBytes(to + i * kBytes, from + i * p.tile_bytes, kBytes, &stages.full[ring.stage]);
    }
  }
}

// Loads tiles of all tokens × 64 columns, one after the other. The two blocks of a cluster take
// turns: each multicasts every second box to both blocks.
__device__ __forceinline__ void ProduceTokens(const Kernel& p, const Maps& maps,
                                              const Stages& stages, TileScheduler walk, int block,
                                              int cluster) {
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int tokens = TokensOfTile(tile.tokens), bytes = tokens * kGemmRowBytes;
    const int large = tokens / 64, boxes = large + (tokens % 64 > 0);
    const CUtensorMap* last = &maps.of[tokens % 64 == 16 ? 2 : 1];
    for (int kb = 0; kb < p.few.k_blocks; ++kb, ring.Next(stages.count)) {
      uint8_t* to = AcquireStage(stages, ring, kW4A16Steps * bytes) + stages.weight_bytes;
      uint64_t* full = &stages.full[ring.stage];
      for (int step = 0; step < kW4A16Steps; ++step)
        for (int i = 0; i < boxes; ++i) {
          const CUtensorMap* map = i < large ? &maps.of[0] : last;
          const int column = (kb * kW4A16Steps + step) * kW4A16Tile, row = tile.row + i * 64;
          uint8_t* box = to + step * bytes + i * 64 * kGemmRowBytes;
          if (cluster == 1) {
            ptx::LoadBox(box, map, column, row, full);
          } else if ((step * boxes + i) % 2 == block) {
            ptx::LoadBoxMulticast(box, map, column, row, full, 3);
          }
        }
    }
  }
}

// Issues the wgmmas of a tile of 64 columns asynchronously. `a` must not be written until a
// WgmmaWait has covered them.
template <int kCount>
__device__ __forceinline__ void IssueUnpackedWgmma(const uint32_t (&a)[4][4], const uint8_t* tokens,
                                                   float (&sums)[kCount]) {
  // Runs of columns differ only in the address, in the lower half of the descriptor.
  const uint64_t b = ptx::MatrixDescriptor(tokens);
  const uint64_t upper = b >> 32 << 32;
  const auto lower = static_cast<uint32_t>(b);
  ptx::PinRegisters(sums);
  ptx::WgmmaFence();
#pragma unroll
  for (int run = 0; run < 4; ++run) ptx::WgmmaBf16(sums, a[run], upper | (lower + 2 * run), true);
  ptx::WgmmaCommit();
  ptx::PinRegisters(sums);
}

// Main loop of a tile: the thread's fragment of 64 × kTokens sums (layout: few_rows::Multiplier).
// While wgmma processes 64 columns, the next 64 are unpacked into other registers. Registers that
// wgmma still reads must not live across the loop's end. The compiler would keep them live around
// the loop over tiles, one set for each kTokens, and spill.
template <W4A16Kind kKind, int kScales, int kTokens>
struct Multiplier {
  static constexpr int kRecord = W4A16RecordBytes(kKind, kScales);
  const Kernel& p;
  const Stages& stages;
  float global;
  int warpgroup, thread, cluster;

  __device__ __forceinline__ void Unpack(int stage, int step, uint32_t (&a)[4][4]) const {
    W4A16Tile<kKind, kScales> tile;
    tile.Load(stages.memory + stage * stages.bytes + (warpgroup * kW4A16Steps + step) * kRecord,
              thread, global);
#pragma unroll
    for (int run = 0; run < 4; ++run) tile.Unpack(run, a[run]);
  }
  __device__ __forceinline__ const uint8_t* Tokens(int stage, int step) const {
    return stages.memory + stage * stages.bytes + stages.weight_bytes +
           step * kTokens * kGemmRowBytes;
  }

  __device__ __forceinline__ void Run(PipelineState& ring, float (&sums)[kTokens / 2]) const {
    static_assert(kW4A16Steps == 2);
    uint32_t first[4][4], second[4][4];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    ptx::BarrierWait(&stages.full[ring.stage], ring.parity);
    Unpack(ring.stage, 0, first);
    for (int kb = 1;; ++kb) {
      const int stage = ring.stage;
      IssueUnpackedWgmma(first, Tokens(stage, 0), sums);
      Unpack(stage, 1, second);
      ptx::WgmmaWait<0>();
      IssueUnpackedWgmma(second, Tokens(stage, 1), sums);
      ring.Next(stages.count);
      if (kb == p.few.k_blocks) break;
      ptx::BarrierWait(&stages.full[ring.stage], ring.parity);
      Unpack(ring.stage, 0, first);
      ptx::WgmmaWait<0>();
      Release(stages, stage, cluster);
    }
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums);
    Release(stages, (ring.stage == 0 ? stages.count : ring.stage) - 1, cluster);
  }
};

template <W4A16Kind kKind, int kScales, int kTokens>
__device__ __forceinline__ void ComputeTile(const Kernel& p, const Stages& stages,
                                            PipelineState& ring, const Tile& tile, int block,
                                            int cluster, uint8_t* staged) {
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  const RowTiles rows = RowTilesOf(p, tile, block, cluster);
  // A warpgroup without valid weights unpacks arbitrary stage contents; its sums are not used.
  float global = 0.0f;
  if (kKind == W4A16Kind::kNvfp4 && warpgroup < rows.count)
    global = p.globals[int64_t{tile.group} * p.row_tiles + rows.first + warpgroup];
  float sums[kTokens / 2];
  Multiplier<kKind, kScales, kTokens>{p, stages, global, warpgroup, thread, cluster}.Run(ring,
                                                                                         sums);

  const int column = (rows.first + warpgroup) * kW4A16Tile + thread / 32 * 16;
  if (warpgroup >= rows.count || column >= p.few.n) return;
  if (p.few.bias) {
    const float* bias = p.few.bias + int64_t{tile.group} * p.few.n;
    const int c = column + lane / 4;
    const float low = c < p.few.n ? bias[c] : 0.0f, high = c + 8 < p.few.n ? bias[c + 8] : 0.0f;
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) sums[j] = __fadd_rn(sums[j], j % 4 < 2 ? low : high);
  }
  if (p.few.float_output) {
    StoreFloats<kTokens>(p.few, tile, column, lane, sums);
  } else {
    StoreBf16<kTokens>(p.few, tile, column, lane, staged, sums);
  }
}

template <W4A16Kind kKind, int kScales>
__device__ __forceinline__ void Consume(const Kernel& p, const Stages& stages, TileScheduler walk,
                                        int block, int cluster, uint8_t* staged) {
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    switch (TokensOfTile(tile.tokens)) {
#define SWITCHYARD_TOKENS(tokens)                                                       \
  case tokens:                                                                          \
    ComputeTile<kKind, kScales, tokens>(p, stages, ring, tile, block, cluster, staged); \
    break
      SWITCHYARD_TOKENS(16);
      SWITCHYARD_TOKENS(32);
      SWITCHYARD_TOKENS(64);
      SWITCHYARD_TOKENS(96);
      SWITCHYARD_TOKENS(128);
      SWITCHYARD_TOKENS(160);
      SWITCHYARD_TOKENS(192);
#undef SWITCHYARD_TOKENS
    }
  }
}

// Copies the groups' row counts and starts within A to shared memory and finds the longest tile.
__device__ __forceinline__ void ReadGroups(const Kernel& p, Header& header,
                                           const ActiveGroups& list) {
  int longest = 0;
  for (int g = threadIdx.x; g < p.few.groups; g += blockDim.x) {
    // Bypasses L1, which may hold stale values read by an earlier kernel.
    const int begin = __ldcg(p.few.group_begins + g) - p.first_row;
    const int end = begin + __ldcg(p.few.group_rows + g);
    const int first = max(begin, 0), count = max(min(end, p.few.rows) - first, 0);
    list.begins[g] = first;
    list.rows[g] = count;
    longest = max(longest, min(count, kMaxTokens));
  }
  longest = __reduce_max_sync(~0u, longest);
  if (threadIdx.x % 32 == 0) atomicMax(&header.longest, longest);
  __syncthreads();
  if (threadIdx.x < 32) CompactGroups(header, list, p.few.groups);
}

// kConsumers warpgroups multiply 64 weight rows each.
template <W4A16Kind kKind, int kScales, int kConsumers>
__global__ void __launch_bounds__(128 * (kConsumers + 1), 1)
    FewRowsKernel(const __grid_constant__ Kernel p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) uint8_t memory[];
  constexpr int kRecord = W4A16RecordBytes(kKind, kScales);
  const int ring_bytes =
      (kSharedBytes - sizeof(Header) - p.few.groups * kGroupListBytes) / 1024 * 1024;
  auto& header = *reinterpret_cast<Header*>(memory + ring_bytes);
  auto* words = reinterpret_cast<int32_t*>(&header + 1);
  const ActiveGroups list = {words, words + p.few.groups, words + 2 * p.few.groups};
  const int block = ptx::BlockOfCluster(), cluster = ptx::BlocksOfCluster();
  const int warpgroup = threadIdx.x / 128;

  if (threadIdx.x == 0) {
    header.longest = 0;
    for (int s = 0; s < kMaxStages; ++s) {
      ptx::BarrierInit(&header.full[s], 2);
      ptx::BarrierInit(&header.empty[s], kConsumers * 4 * cluster * ptx::kWarpArrivals);
    }
    ptx::FenceBarrierInit();
    for (const CUtensorMap& map : maps.of) ptx::PrefetchTensorMap(&map);
  }
  __syncthreads();
  // If the group sizes are known, weights are fetched before the previous kernel has ended, as in
  // gemm_few_rows.cu.
  const bool is_weight_producer =
      warpgroup == kConsumers && threadIdx.x % 128 / 32 == few_rows::kWeights;
  if (!p.few.groups_ready) WaitForPriorKernels();
  ReadGroups(p, header, list);
  __syncthreads();
  ptx::ClusterSync();
  if (!is_weight_producer) {
    if (p.few.groups_ready) WaitForPriorKernels();
    LaunchDependents();
  }

  // Token tiles are aligned to 1024 bytes.
  constexpr int kWeightBytes = (kConsumers * kW4A16Steps * kRecord + 1023) / 1024 * 1024;
  Stages stages = {
      .memory = memory, .weight_bytes = kWeightBytes, .full = header.full, .empty = header.empty};
  stages.bytes = kWeightBytes + TokensOfTile(header.longest) * kGemmRowBytes * kW4A16Steps;
  stages.count = min(ring_bytes / stages.bytes, kMaxStages);
  const TileScheduler walk(p.few, header, list);
  if (warpgroup == kConsumers) {
    if constexpr (kConsumers > 1) ptx::DeallocateRegisters<40>();
    if (threadIdx.x % 32 == 0) {
      switch (threadIdx.x % 128 / 32) {
        case few_rows::kWeights:
          ProduceWeights<kRecord>(p, stages, walk, block, cluster);
          break;
        case few_rows::kTokens:
          ProduceTokens(p, maps, stages, walk, block, cluster);
          break;
      }
    }
    __syncwarp();
    if (is_weight_producer) WaitForPriorKernels();
  } else {
    if constexpr (kConsumers > 1) ptx::AllocateRegisters<232>();
    Consume<kKind, kScales>(p, stages, walk, block, cluster, header.staged[threadIdx.x / 32]);
  }
  // A block must not exit while its partner may still arrive at its barriers.
  ptx::ClusterSync();
}

template <W4A16Kind kKind, int kScales, int kConsumers>
cudaError_t StartWith(const W4A16Launch& launch, const PdlStream& chain) {
  static SharedMemoryOptIn setup;
  const cudaError_t error =
      setup.On(launch.gpu.index, FewRowsKernel<kKind, kScales, kConsumers>, kSharedBytes);
  if (error != cudaSuccess) return error;
  const W4A16GemmParams& p = launch.params;
  const int cluster = launch.plan.cluster, step = launch.plan.weight_rows * cluster;
  const int64_t column_tiles = W4A16ColumnTiles(p.k), row_tiles = W4A16RowTiles(p.n);
  const int64_t tile_bytes = column_tiles * W4A16RecordBytes(kKind, kScales);
  const Kernel kernel = {.few = {.b_scales = nullptr,
                                 .bias = p.bias,
                                 .d = p.d,
                                 .ldd = p.n,
                                 .group_begins = p.group_begins,
                                 .group_rows = p.group_rows,
                                 .groups_ready = p.groups_ready,
                                 .rows = static_cast<int>(p.rows),
                                 .n = static_cast<int>(p.n),
                                 .groups = p.groups,
                                 .k_blocks = static_cast<int>(column_tiles / kW4A16Steps),
                                 .weight_rows = launch.plan.weight_rows,
                                 .column_tiles = static_cast<int>((p.n + step - 1) / step),
                                 .float_output = p.float_output,
                                 .accumulate = false},
                         .records = static_cast<const uint8_t*>(p.records),
                         .globals = p.globals,
                         .row_tiles = static_cast<int>(row_tiles),
                         .tile_bytes = tile_bytes,
                         .group_bytes = row_tiles * tile_bytes,
                         .first_row = static_cast<int>(p.first_row)};
  Maps maps;
  for (int i = 0; i < kMapCount; ++i) maps.of[i] = launch.a_maps[i];
  // Upper bound of the number of tiles; empty groups have none.
  const int64_t most_parts = (p.rows + kMaxTokens - 1) / kMaxTokens + p.groups;
  const int64_t clusters =
      std::min<int64_t>(launch.gpu.processors / cluster, most_parts * kernel.few.column_tiles);

  return LaunchClusters(FewRowsKernel<kKind, kScales, kConsumers>, static_cast<int>(clusters),
                        cluster, 128 * (kConsumers + 1), kSharedBytes, chain, kernel, maps);
}

template <W4A16Kind kKind, int kScales>
cudaError_t Start(const W4A16Launch& launch, const PdlStream& chain) {
  return launch.plan.weight_rows > kW4A16Tile ? StartWith<kKind, kScales, 2>(launch, chain)
                                              : StartWith<kKind, kScales, 1>(launch, chain);
}

}  // namespace switchyard::cuda::w4a16
