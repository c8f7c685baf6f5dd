// Producer warps of the few-rows GEMM, which issue TMA loads.
#pragma once

#include "kernels/cuda/gemm/gemm_few_rows_tiles.cuh"

namespace switchyard::cuda::few_rows {

// Waits until a stage is free and registers the bytes that this thread will load into it.
__device__ __forceinline__ uint8_t* AcquireStage(const Stages& stages, const PipelineState& ring,
                                                 int bytes) {
  ptx::BarrierWait(&stages.empty[ring.stage], ring.parity ^ 1);
  ptx::BarrierExpect(&stages.full[ring.stage], bytes);
  return stages.memory + ring.stage * stages.bytes;
}

// TMA sources, one warp each: one thread is too slow to issue all loads of small stages.
enum Source { kWeights, kTokens, kScales };

template <int kSteps>
__device__ __forceinline__ void ProduceWeights(const Kernel& p, const CUtensorMap& map, int step,
                                               const Stages& stages, TileScheduler walk, int block,
                                               int cluster) {
  const uint64_t once = ptx::EvictFirst();
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int row = tile.group * p.n + (tile.column * cluster + block) * p.weight_rows;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      uint8_t* to = AcquireStage(stages, ring, stages.weight_bytes);
      uint64_t* full = &stages.full[ring.stage];
      if constexpr (kSteps == 1) {
        p.reads_once ? ptx::LoadBoxWith(once, to, &map, kb * step, row, full)
                     : ptx::LoadBox(to, &map, kb * step, row, full);
      } else {
        p.reads_once ? ptx::LoadBoxWith(once, to, &map, 0, row, kb, full)
                     : ptx::LoadBox(to, &map, 0, row, kb, full);
      }
    }
  }
}

// The two blocks of a cluster take turns: each multicasts every second box of tokens to both
// blocks.
__device__ __forceinline__ void ProduceTokens(const Kernel& p, const CUtensorMap& map,
                                              const CUtensorMap& small_map, int step,
                                              const Stages& stages, TileScheduler walk, int block,
                                              int cluster) {
  constexpr int kMaxBoxes = 4;  // maximum, at 160 tokens: 64 + 64 + 16 + 16
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int tokens = TokensOfTile(tile.tokens);
    const int large = tokens / kBoxTokens, all = large + tokens % kBoxTokens / kSmallBoxTokens;
    for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(stages.count)) {
      uint8_t* to = AcquireStage(stages, ring, tokens * kGemmRowBytes) + stages.weight_bytes;
      uint64_t* full = &stages.full[ring.stage];
#pragma unroll
      for (int i = 0; i < kMaxBoxes; ++i) {
        const int token = min(i, large) * kBoxTokens + max(i - large, 0) * kSmallBoxTokens;
        const CUtensorMap* box = i < large ? &map : &small_map;
        if (i >= all) break;
        if (cluster == 1) {
          ptx::LoadBox(to + token * kGemmRowBytes, box, kb * step, tile.row + token, full);
        } else if (i % 2 == block) {
          ptx::LoadBoxMulticast(to + token * kGemmRowBytes, box, kb * step, tile.row + token, full,
                                3);
        }
      }
    }
  }
}

// Loads all token rows as one box, several steps at a time.
template <int kSteps>
__device__ __forceinline__ void ProduceRows(const Kernel& p, const CUtensorMap& map,
                                            const Stages& stages, TileScheduler walk) {
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x; walk.Find(index, tile); index += gridDim.x) {
    const int bytes = TokensOfTile(tile.tokens) * kGemmRowBytes * kSteps;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count))
      ptx::LoadBox(AcquireStage(stages, ring, bytes) + stages.weight_bytes, &map, 0, tile.row, kb,
                   &stages.full[ring.stage]);
  }
}

template <int kSteps>
__device__ __forceinline__ void ProduceScales(const Kernel& p, const CUtensorMap& map,
                                              const Stages& stages, TileScheduler walk,
                                              int cluster) {
  PipelineState ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int boxes = (TokensOfTile(tile.tokens) + kBoxTokens - 1) / kBoxTokens;
    constexpr int kBoxBytes = kSteps * kBoxTokens * sizeof(float);
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      uint8_t* to = AcquireStage(stages, ring, boxes * kBoxBytes) + stages.bytes - kScaleBytes;
      for (int i = 0; i < boxes; ++i)
        ptx::LoadBox(to + i * kBoxBytes, &map, tile.row + i * kBoxTokens, kb,
                     &stages.full[ring.stage]);
    }
  }
}

}  // namespace switchyard::cuda::few_rows
