// Groups of few rows: weights stand on wgmma's side of 64 rows, tokens on the side that may be as
// short as 16, so that the copy engine streams weights and no work is done for rows that are not
// there. What a group has is read on the device: the grid is fixed.
#include <algorithm>

#include "kernels/cuda/gemm_tiles.cuh"
#include "kernels/cuda/kernel_setup.h"

namespace switchyard::cuda {
namespace {

constexpr int kMaxStages = 32;
constexpr int kSharedBytes = 232448;  // all that a block can have
constexpr int kMaxTokens = kFewRowsMaxTokens;
constexpr int kBoxTokens = 64, kSmallBoxTokens = 16;
constexpr int kScaleBytes = 1024;    // of a stage: scales of its tokens
constexpr int kStagedRowBytes = 48;  // 16 bfloat16, and no two of eight rows in the same banks

struct Kernel {
  const float* b_scales;
  const float* bias;
  void* d;
  int64_t ldd;
  const int32_t* group_begins;
  const int32_t* group_rows;  // null: one group of `rows`
  int rows, n, groups;
  int k_blocks;      // steps of 128 bytes
  int weight_rows;   // of a block's tile
  int column_tiles;  // of a cluster
  bool float_output, accumulate;
};

// Shared memory behind the ring of stages, then rows and begins of groups.
struct Header {
  uint8_t staged[8][16 * kStagedRowBytes];  // of each warp that multiplies
  uint64_t full[kMaxStages], empty[kMaxStages];
  int longest;  // the most tokens of a tile
};

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
  __device__ Walk(const Kernel& p, const int32_t* rows, const int32_t* begins)
      : p_(p), rows_(rows), begins_(begins) {}

  __device__ __forceinline__ bool Find(int index, Tile& tile) {
    for (; group_ < p_.groups; ++group_) {
      const int rows = rows_[group_], parts = (rows + kMaxTokens - 1) / kMaxTokens;
      const int tiles = parts * p_.column_tiles, in_group = index - first_;
      if (in_group < tiles) {
        const int part = in_group % parts;
        tile = {.group = group_,
                .row = begins_[group_] + part * kMaxTokens,
                .tokens = min(rows - part * kMaxTokens, kMaxTokens),
                .column = in_group / parts};
        return true;
      }
      first_ += tiles;
    }
    return false;
  }

 private:
  const Kernel& p_;
  const int32_t *rows_, *begins_;
  int group_ = 0, first_ = 0;
};

// Waits until a stage may be filled and says how many bytes this thread will bring of it.
__device__ __forceinline__ uint8_t* BeginFill(const Stages& stages, const Ring& ring, int bytes) {
  ptx::BarrierWait(&stages.empty[ring.stage], ring.parity ^ 1);
  ptx::BarrierExpect(&stages.full[ring.stage], bytes);
  return stages.memory + ring.stage * stages.bytes;
}

// What is brought by the copy engine: a warp for each, as one thread would be too slow to start all
// of it where stages are small.
enum Source { kWeights, kTokens, kScales };

template <int kSteps>
__device__ __forceinline__ void ProduceWeights(const Kernel& p, const CUtensorMap& map, int step,
                                               const Stages& stages, Walk walk, int block,
                                               int cluster) {
  Ring ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int row = tile.group * p.n + (tile.column * cluster + block) * p.weight_rows;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      uint8_t* to = BeginFill(stages, ring, stages.weight_bytes);
      if constexpr (kSteps == 1) {
        ptx::LoadBox(to, &map, kb * step, row, &stages.full[ring.stage]);
      } else {
        ptx::LoadBox(to, &map, 0, row, kb, &stages.full[ring.stage]);
      }
    }
  }
}

// Blocks of the cluster take turns in fetching boxes of tokens for both.
__device__ __forceinline__ void ProduceTokens(const Kernel& p, const CUtensorMap& map,
                                              const CUtensorMap& small_map, int step,
                                              const Stages& stages, Walk walk, int block,
                                              int cluster) {
  constexpr int kMostBoxes = 4;  // of 160 tokens
  Ring ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int tokens = TokensOfTile(tile.tokens);
    const int large = tokens / kBoxTokens, all = large + tokens % kBoxTokens / kSmallBoxTokens;
    for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(stages.count)) {
      uint8_t* to = BeginFill(stages, ring, tokens * kGemmRowBytes) + stages.weight_bytes;
      uint64_t* full = &stages.full[ring.stage];
#pragma unroll
      for (int i = 0; i < kMostBoxes; ++i) {
        const int token = min(i, large) * kBoxTokens + max(i - large, 0) * kSmallBoxTokens;
        const CUtensorMap* box = i < large ? &map : &small_map;
        if (i >= all) break;
        if (cluster == 1) {
          ptx::LoadBox(to + token * kGemmRowBytes, box, kb * step, tile.row + token, full);
        } else if (i % 2 == block) {
          ptx::LoadBoxToBlocks(to + token * kGemmRowBytes, box, kb * step, tile.row + token, full,
                               3);
        }
      }
    }
  }
}

// All rows there are in one box, several steps at a time.
template <int kSteps>
__device__ __forceinline__ void ProduceRows(const Kernel& p, const CUtensorMap& map,
                                            const Stages& stages, Walk walk) {
  Ring ring;
  Tile tile;
  for (int index = blockIdx.x; walk.Find(index, tile); index += gridDim.x) {
    const int bytes = TokensOfTile(tile.tokens) * kGemmRowBytes * kSteps;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count))
      ptx::LoadBox(BeginFill(stages, ring, bytes) + stages.weight_bytes, &map, 0, tile.row, kb,
                   &stages.full[ring.stage]);
  }
}

template <int kSteps>
__device__ __forceinline__ void ProduceScales(const Kernel& p, const CUtensorMap& map,
                                              const Stages& stages, Walk walk, int cluster) {
  Ring ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    const int boxes = (TokensOfTile(tile.tokens) + kBoxTokens - 1) / kBoxTokens;
    constexpr int kBoxBytes = kSteps * kBoxTokens * sizeof(float);
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      uint8_t* to = BeginFill(stages, ring, boxes * kBoxBytes) + stages.bytes - kScaleBytes;
      for (int i = 0; i < boxes; ++i)
        ptx::LoadBox(to + i * kBoxBytes, &map, tile.row + i * kBoxTokens, kb,
                     &stages.full[ring.stage]);
    }
  }
}

// Says to the producers of all blocks that this warpgroup has read a stage.
__device__ __forceinline__ void Release(const Stages& stages, int stage, int thread, int cluster) {
  if (thread < cluster) ptx::BarrierArriveAt(&stages.empty[stage], thread);
}

// A tile's products, as the thread's part of 64 × kTokens sums: element 4j + i is weight row
// lane / 4 + 8 (i / 2) of the warp's 16, token 8j + 2 (lane % 4) + i % 2.
template <int kTokens, int kSteps>
struct Multiplier {
  const Kernel& p;
  const Stages& stages;
  const float* b_scales;  // FP8: [k_blocks] of the tile's weights
  int warpgroup, thread, cluster;

  // The operands of step i of a stage.
  __device__ __forceinline__ const uint8_t* Weights(int stage, int i) const {
    return stages.memory + stage * stages.bytes + i * p.weight_rows * kGemmRowBytes +
           warpgroup * 64 * kGemmRowBytes;
  }
  __device__ __forceinline__ const uint8_t* Tokens(int stage, int i) const {
    return stages.memory + stage * stages.bytes + stages.weight_bytes + i * kTokens * kGemmRowBytes;
  }

  __device__ __forceinline__ void Plain(Ring& ring, float (&sums)[kTokens / 2]) const {
    int previous = -1;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    for (int kb = 0; kb < p.k_blocks; kb += kSteps, ring.Next(stages.count)) {
      ptx::BarrierWait(&stages.full[ring.stage], ring.parity);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        StartMultiply<false>(Weights(ring.stage, i), Tokens(ring.stage, i), true, sums);
      ptx::MultiplyWait<kSteps>();  // the stage before this one is done
      if (previous >= 0) Release(stages, previous, thread, cluster);
      previous = ring.stage;
    }
    ptx::MultiplyWait<0>();
    ptx::PinRegisters(sums);
    Release(stages, previous, thread, cluster);
  }

  // FP8 sums are scaled and added to float32 every 128 elements, by the operations of
  // gemm_many_rows.cu. While that is done for one step, or for a half of its tokens, the matrix
  // unit has the next.
  static constexpr int kPieces = kTokens > 64 ? 2 : 1;
  static constexpr int kPiece = kTokens / kPieces;
  static constexpr int kChain = 4;  // steps between which nothing waits for the matrix unit

  __device__ __forceinline__ void Promote(int stage, int step, int piece, float b_scale,
                                          const float (&part)[kPiece / 2],
                                          float (&sums)[kTokens / 2]) const {
    const uint8_t* scales = stages.memory + (stage + 1) * stages.bytes - kScaleBytes;
    const auto* a_scales = reinterpret_cast<const float2*>(scales) + step * (kBoxTokens / 2) +
                           piece * (kPiece / 2) + thread % 4;
#pragma unroll
    for (int j = 0; j < kPiece / 2; j += 4) {
      float* to = &sums[piece * (kPiece / 2) + j];
      const float2 a_scale = a_scales[j];
      const float s0 = __fmul_rn(a_scale.x, b_scale), s1 = __fmul_rn(a_scale.y, b_scale);
      to[0] = __fmaf_rn(s0, part[j], to[0]);
      to[1] = __fmaf_rn(s1, part[j + 1], to[1]);
      to[2] = __fmaf_rn(s0, part[j + 2], to[2]);
      to[3] = __fmaf_rn(s1, part[j + 3], to[3]);
    }
  }

  // kLength steps from kb on; `scales` holds those of weights of 32 steps, one a lane.
  template <int kLength>
  __device__ __forceinline__ void Chain(Ring& ring, int kb, float scales,
                                        float (&part)[2][kPiece / 2],
                                        float (&sums)[kTokens / 2]) const {
    Ring ahead = ring;
    ptx::BarrierWait(&stages.full[ahead.stage], ahead.parity);
    StartMultiply<true>(Weights(ahead.stage, 0), Tokens(ahead.stage, 0), false, part[0]);
#pragma unroll
    for (int q = 0; q < kLength * kPieces; ++q) {
      const int step = q / kPieces, next = (q + 1) / kPieces, next_piece = (q + 1) % kPieces;
      if (next < kLength) {
        if (next_piece == 0 && next % kSteps == 0) {
          ahead.Next(stages.count);
          ptx::BarrierWait(&stages.full[ahead.stage], ahead.parity);
        }
        StartMultiply<true>(
            Weights(ahead.stage, next % kSteps),
            Tokens(ahead.stage, next % kSteps) + next_piece * kPiece * kGemmRowBytes, false,
            part[(q + 1) % 2]);
        ptx::MultiplyWait<1>();
      } else {
        ptx::MultiplyWait<0>();
      }
      ptx::PinRegisters(part[q % 2]);
      const float b_scale = __shfl_sync(~0u, scales, (kb + step) % 32);
      Promote(ring.stage, step % kSteps, q % kPieces, b_scale, part[q % 2], sums);
      if (q % kPieces == kPieces - 1 && (step + 1) % kSteps == 0) {
        Release(stages, ring.stage, thread, cluster);
        ring.Next(stages.count);
      }
    }
  }

  __device__ __forceinline__ void Scaled(Ring& ring, float (&sums)[kTokens / 2]) const {
    const int lane = thread % 32;
    const auto scale_of = [&](int kb) { return kb < p.k_blocks ? b_scales[kb] : 0.0f; };
    float scales = 0.0f, next = scale_of(lane);
    float part[2][kPiece / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    int kb = 0;
    const auto refill = [&] {
      if (kb % 32 != 0) return;
      scales = next;
      next = scale_of(kb + 32 + lane);
    };
    // Of a stage of several steps those behind the end are zeros.
    const int whole = kSteps > 1 ? p.k_blocks + kChain - 1 : p.k_blocks;
    for (; kb + kChain <= whole; kb += kChain) {
      refill();
      Chain<kChain>(ring, kb, scales, part, sums);
    }
    if constexpr (kSteps == 1) {
      for (; kb < p.k_blocks; ++kb) {
        refill();
        Chain<1>(ring, kb, scales, part, sums);
      }
    }
  }
};

// A warp's 16 columns of the output from `column`; sums as above.
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

// Through shared memory, where 16 tokens at a time become rows of 16 columns.
template <int kTokens>
__device__ __forceinline__ void StoreBfloats(const Kernel& p, const Tile& tile, int column,
                                             int lane, uint8_t* staged,
                                             const float (&sums)[kTokens / 2]) {
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

template <bool kFp8, int kTokens, int kSteps>
__device__ __forceinline__ void ComputeTile(const Kernel& p, const Stages& stages, Ring& ring,
                                            const Tile& tile, int block, int cluster,
                                            uint8_t* staged) {
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  const int first = (tile.column * cluster + block) * p.weight_rows;  // column of the block
  float sums[kTokens / 2];
  if constexpr (kFp8) {
    const int scale_rows = (p.n + 127) / 128;
    const int64_t scale_row = int64_t{tile.group} * scale_rows + min(first / 128, scale_rows - 1);
    Multiplier<kTokens, kSteps>{p,         stages, p.b_scales + scale_row * p.k_blocks,
                                warpgroup, thread, cluster}
        .Scaled(ring, sums);
  } else {
    Multiplier<kTokens, kSteps>{p, stages, nullptr, warpgroup, thread, cluster}.Plain(ring, sums);
  }

  const int in_tile = warpgroup * 64 + thread / 32 * 16, column = first + in_tile;
  if (in_tile >= p.weight_rows || column >= p.n) return;
  if (p.bias) {
    const float* bias = p.bias + int64_t{tile.group} * p.n;
    const int c = column + lane / 4;
    const float low = c < p.n ? bias[c] : 0.0f, high = c + 8 < p.n ? bias[c + 8] : 0.0f;
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) sums[j] = __fadd_rn(sums[j], j % 4 < 2 ? low : high);
  }
  if (p.float_output) {
    StoreFloats<kTokens>(p, tile, column, lane, sums);
  } else {
    StoreBfloats<kTokens>(p, tile, column, lane, staged, sums);
  }
}

template <bool kFp8, int kSteps>
__device__ __forceinline__ void Consume(const Kernel& p, const Stages& stages, Walk walk, int block,
                                        int cluster, uint8_t* staged) {
  Ring ring;
  Tile tile;
  for (int index = blockIdx.x / cluster; walk.Find(index, tile); index += gridDim.x / cluster) {
    switch (TokensOfTile(tile.tokens)) {
#define SWITCHYARD_TOKENS(tokens)                                                       \
  case tokens:                                                                          \
    if constexpr (kSteps == 1 || tokens <= kFourStepsMaxTokens)                         \
      ComputeTile<kFp8, tokens, kSteps>(p, stages, ring, tile, block, cluster, staged); \
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

// Copies what groups have into shared memory and finds the longest tile.
__device__ __forceinline__ void ReadGroups(const Kernel& p, Header& header, int32_t* rows,
                                           int32_t* begins) {
  int longest = 0;
  for (int g = threadIdx.x; g < p.groups; g += blockDim.x) {
    const int count = p.group_rows ? p.group_rows[g] : p.rows;
    rows[g] = count;
    begins[g] = p.group_rows ? p.group_begins[g] : 0;
    longest = max(longest, min(count, kMaxTokens));
  }
  longest = __reduce_max_sync(~0u, longest);
  if (threadIdx.x % 32 == 0) atomicMax(&header.longest, longest);
}

// kConsumers warpgroups multiply 64 rows of weights each, those of weight_rows that there are.
template <bool kFp8, int kConsumers, int kSteps>
__global__ void __launch_bounds__(128 * (kConsumers + 1), 1)
    FewRowsKernel(const __grid_constant__ Kernel p, const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap a_small_map,
                  const __grid_constant__ CUtensorMap b_map,
                  const __grid_constant__ CUtensorMap scales_map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const int ring_bytes = (kSharedBytes - sizeof(Header) - p.groups * 8) / 1024 * 1024;
  auto& header = *reinterpret_cast<Header*>(memory + ring_bytes);
  auto* rows = reinterpret_cast<int32_t*>(&header + 1);
  int32_t* begins = rows + p.groups;
  const int block = ptx::BlockOfCluster(), cluster = ptx::BlocksOfCluster();
  const int warpgroup = threadIdx.x / 128;

  if (threadIdx.x == 0) {
    header.longest = 0;
    for (int s = 0; s < kMaxStages; ++s) {
      ptx::BarrierInit(&header.full[s], kFp8 ? 3 : 2);
      ptx::BarrierInit(&header.empty[s], kConsumers * cluster);
    }
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&a_map);
    if (kSteps == 1) ptx::PrefetchTensorMap(&a_small_map);
    ptx::PrefetchTensorMap(&b_map);
    if (kFp8) ptx::PrefetchTensorMap(&scales_map);
  }
  __syncthreads();
  ReadGroups(p, header, rows, begins);
  __syncthreads();
  ptx::ClusterSync();

  Stages stages = {.memory = memory,
                   .weight_bytes = p.weight_rows * kGemmRowBytes * kSteps,
                   .full = header.full,
                   .empty = header.empty};
  stages.bytes = stages.weight_bytes + TokensOfTile(header.longest) * kGemmRowBytes * kSteps +
                 (kFp8 ? kScaleBytes : 0);
  stages.count = min(ring_bytes / stages.bytes, kMaxStages);
  const Walk walk(p, rows, begins);
  if (warpgroup == kConsumers) {
    if constexpr (kConsumers > 1) ptx::GiveRegisters<40>();
    constexpr int kStep = kGemmRowBytes / (kFp8 ? 1 : 2);  // elements
    if (threadIdx.x % 32 == 0) {
      switch (threadIdx.x % 128 / 32) {
        case kWeights:
          ProduceWeights<kSteps>(p, b_map, kStep, stages, walk, block, cluster);
          break;
        case kTokens:
          if constexpr (kSteps == 1) {
            ProduceTokens(p, a_map, a_small_map, kStep, stages, walk, block, cluster);
          } else {
            ProduceRows<kSteps>(p, a_map, stages, walk);
          }
          break;
        case kScales:
          if constexpr (kFp8) ProduceScales<kSteps>(p, scales_map, stages, walk, cluster);
          break;
      }
    }
    __syncwarp();
  } else {
    if constexpr (kConsumers > 1) ptx::TakeRegisters<232>();
    Consume<kFp8, kSteps>(p, stages, walk, block, cluster, header.staged[threadIdx.x / 32]);
  }
  // A block whose barriers its partner may still arrive at has to stay.
  ptx::ClusterSync();
}

template <bool kFp8, int kConsumers, int kSteps>
cudaError_t Start(const GemmLaunch& launch, cudaStream_t stream) {
  static KernelSetup setup;
  const cudaError_t error =
      setup.On(launch.gpu.index, FewRowsKernel<kFp8, kConsumers, kSteps>, kSharedBytes);
  if (error != cudaSuccess) return error;
  const GemmProblem& p = launch.problem;
  const int cluster = launch.plan.cluster, step = launch.plan.weight_rows * cluster;
  const int64_t row_bytes = p.k * (p.fp8 ? 1 : 2);
  const Kernel kernel = {
      .b_scales = p.b_scales,
      .bias = p.bias,
      .d = p.d,
      .ldd = p.ldd,
      .group_begins = p.group_begins,
      .group_rows = p.group_rows,
      .rows = static_cast<int>(p.rows),
      .n = static_cast<int>(p.n),
      .groups = p.groups,
      .k_blocks = static_cast<int>((row_bytes + kGemmRowBytes - 1) / kGemmRowBytes),
      .weight_rows = launch.plan.weight_rows,
      .column_tiles = static_cast<int>((p.n + step - 1) / step),
      .float_output = p.float_output,
      .accumulate = p.accumulate};
  // The most tiles there can be: a group of no rows has none.
  const int64_t most_parts = (p.rows + kMaxTokens - 1) / kMaxTokens + p.groups;
  const int64_t clusters =
      std::min<int64_t>(launch.gpu.processors / cluster, most_parts * kernel.column_tiles);

  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  config.blockDim = dim3(128 * (kConsumers + 1));
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, FewRowsKernel<kFp8, kConsumers, kSteps>, kernel, launch.a_map,
                            launch.a_small_map, launch.b_map, launch.scales_map);
}

}  // namespace

cudaError_t StartFewRowsGemm(const GemmLaunch& launch, cudaStream_t stream) {
  const bool fp8 = launch.problem.fp8;
  if (launch.plan.weight_rows > 64)
    return fp8 ? Start<true, 2, 1>(launch, stream) : Start<false, 2, 1>(launch, stream);
  if (launch.plan.steps == 1)
    return fp8 ? Start<true, 1, 1>(launch, stream) : Start<false, 1, 1>(launch, stream);
  return fp8 ? Start<true, 1, 4>(launch, stream) : Start<false, 1, 4>(launch, stream);
}

}  // namespace switchyard::cuda
