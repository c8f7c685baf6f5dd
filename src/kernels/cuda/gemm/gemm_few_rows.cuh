// The parts of the few-rows GEMM (gemm_few_rows.cu), which the GEMM with packed weights shares
// (quantized/w4a16_few_rows.cuh): tile scheduler and pipeline, producers, main loop and epilogue.
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

// Producer warps, which issue TMA loads.

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

// The main loop of consumer warpgroups.

// Releases a stage to the producers of all blocks of the cluster. Each warp arrives separately: a
// wgmma wait does not cover other warps' reads of the scales.
__device__ __forceinline__ void Release(const Stages& stages, int stage, int cluster) {
  ptx::BarrierArriveWarpAt(&stages.empty[stage], cluster);
}

// Main loop of a tile: the thread's fragment of 64 × kTokens sums. Element 4j + i is weight row
// lane / 4 + 8 (i / 2) of the warp's 16 rows and token 8j + 2 (lane % 4) + i % 2.
template <int kTokens, int kSteps>
struct Multiplier {
  const Kernel& p;
  const Stages& stages;
  const float* b_scales;  // FP8: [k_blocks], scales of the tile's weights
  int warpgroup, thread, cluster;

  // Operand descriptors of step i of a stage.
  __device__ __forceinline__ uint64_t Weights(int stage, int i) const {
    return ptx::MatrixDescriptor(stages.memory + stage * stages.bytes +
                                 i * p.weight_rows * kGemmRowBytes +
                                 warpgroup * 64 * kGemmRowBytes);
  }
  __device__ __forceinline__ uint64_t Tokens(int stage, int i) const {
    return ptx::MatrixDescriptor(stages.memory + stage * stages.bytes + stages.weight_bytes +
                                 i * kTokens * kGemmRowBytes);
  }

  __device__ __forceinline__ void Plain(PipelineState& ring, float (&sums)[kTokens / 2]) const {
    int previous = -1;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      ptx::BarrierWait(&stages.full[ring.stage], ring.parity);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        IssueWgmma<false>(Weights(ring.stage, i), Tokens(ring.stage, i), true, sums);
      ptx::WgmmaWait<kSteps>();  // the previous stage is done
      if (previous >= 0) Release(stages, previous, cluster);
      previous = ring.stage;
    }
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums);
    Release(stages, previous, cluster);
  }

  // FP8 partial sums are scaled and accumulated in float32 every 128 elements, with the operations
  // of gemm_many_rows.cu. Within a stage the next step's wgmma overlaps this promotion.
  __device__ __forceinline__ void Scaled(PipelineState& ring, float (&sums)[kTokens / 2]) const {
    const int lane = thread % 32;
    const auto scale_of = [&](int kb) { return kb < p.k_blocks ? b_scales[kb] : 0.0f; };
    float scales = 0.0f, next = scale_of(lane);  // weight scales of 32 steps, one per lane
    float part[kSteps > 1 ? 2 : 1][kTokens / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    // Steps of the last stage beyond K are zero-filled.
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      if (kb % 32 == 0) {
        scales = next;
        next = scale_of(kb + 32 + lane);
      }
      const int s = ring.stage;
      ptx::BarrierWait(&stages.full[s], ring.parity);
      IssueWgmma<true>(Weights(s, 0), Tokens(s, 0), false, part[0]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (i + 1 < kSteps) {
          IssueWgmma<true>(Weights(s, i + 1), Tokens(s, i + 1), false, part[(i + 1) % 2]);
          ptx::WgmmaWait<1>();
        } else {
          ptx::WgmmaWait<0>();
        }
        ptx::PinRegisters(part[i % 2]);
        Promote(s, i, __shfl_sync(~0u, scales, (kb + i) % 32), part[i % 2], sums);
      }
      Release(stages, s, cluster);
    }
  }

 private:
  __device__ __forceinline__ void Promote(int stage, int step, float b_scale,
                                          const float (&part)[kTokens / 2],
                                          float (&sums)[kTokens / 2]) const {
    const uint8_t* scales = stages.memory + (stage + 1) * stages.bytes - kScaleBytes;
    const auto* a_scales =
        reinterpret_cast<const float2*>(scales) + step * (kBoxTokens / 2) + thread % 4;
#pragma unroll
    for (int j = 0; j < kTokens / 2; j += 4) {
      const float2 a_scale = a_scales[j];
      const float s0 = __fmul_rn(a_scale.x, b_scale), s1 = __fmul_rn(a_scale.y, b_scale);
      sums[j] = __fmaf_rn(s0, part[j], sums[j]);
      sums[j + 1] = __fmaf_rn(s1, part[j + 1], sums[j + 1]);
      sums[j + 2] = __fmaf_rn(s0, part[j + 2], sums[j + 2]);
      sums[j + 3] = __fmaf_rn(s1, part[j + 3], sums[j + 3]);
    }
  }
};

// Epilogue: sums have weights along rows, D has them along columns.

// Stores a warp's 16 output columns from `column` on; layout of `sums`: Multiplier.
template <int kTokens>
__device__ __forceinline__ void StoreFloats(const Kernel& p, const Tile& tile, int column, int lane,
                                            const float (&sums)[kTokens / 2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int c = column + lane / 4 + i / 2 * 8;
    if (c >= p.n) continue;
    auto* d = static_cast<float*>(p.d) + tile.row * p.ldd + c;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int token = 8 * j + 2 * (lane % 4) + i % 2;
      if (token >= tile.tokens) break;
      float* to = d + token * p.ldd;
      *to = p.accumulate ? __fadd_rn(*to, sums[4 * j + i]) : sums[4 * j + i];
    }
  }
}

// Transposes through shared memory, 16 tokens × 16 columns at a time.
template <int kTokens>
__device__ __forceinline__ void StoreBf16(const Kernel& p, const Tile& tile, int column, int lane,
                                          uint8_t* staged, const float (&sums)[kTokens / 2]) {
  const int c = column + lane % 2 * 8;
  uint8_t* matrix = staged + (lane / 16 * 8 + lane % 8) * kStagedRowBytes + lane / 8 % 2 * 16;
  auto* d = static_cast<__nv_bfloat16*>(p.d) + tile.row * p.ldd + c;
#pragma unroll
  for (int token = 0; token < kTokens; token += 16) {
    const float* x = &sums[token / 2];
    __syncwarp();
    ptx::StoreMatricesTransposed(matrix, Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]),
                                 Pack(x[6], x[7]));
    __syncwarp();
    const int t = token + lane / 2;
    if (t < tile.tokens && c < p.n)
      *reinterpret_cast<uint4*>(d + t * p.ldd) =
          *reinterpret_cast<const uint4*>(staged + lane / 2 * kStagedRowBytes + lane % 2 * 16);
  }
}

}  // namespace switchyard::cuda::few_rows
