// Problem: D [m, n] = A [m, k] · B [n, k]ᵀ, dense or for each group, few rows per group (decode).
// Weights are wgmma's 64-row operand, tokens its N side (from 16 on), so padding costs no products.
// Tiling: weight_rows (16 to 128) weights × up to 192 tokens; a step along K is 128 bytes. At most
// one block per SM, in clusters of one or two that share token tiles by multicast. Group sizes are
// read on the device. Pipeline: a producer warpgroup with one warp per TMA source, one or two
// consumer warpgroups of 64 weight rows, one or four steps of K per stage.
// Measured on one H200, of 4.8 TB/s: 89 % in FP8 and 91 % in bfloat16 (32 groups of 3 rows, N 6144,
// K 7168); dense bfloat16 with 16 rows 90 % (129280 × 7168) to 35 % (2048 × 4096).
// Source: DeepGEMM's description (gemm.h).
#include <algorithm>

#include "kernels/cuda/device/kernel_chain.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_few_rows.cuh"

namespace switchyard::cuda {
namespace few_rows {
namespace {

template <bool kFp8, int kTokens, int kSteps>
__device__ __forceinline__ void ComputeTile(const Kernel& p, const Stages& stages,
                                            PipelineState& ring, const Tile& tile, int block,
                                            int cluster, uint8_t* staged) {
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32;
  const int first = (tile.column * cluster + block) * p.weight_rows;  // first column of D
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
    StoreBf16<kTokens>(p, tile, column, lane, staged, sums);
  }
}

template <bool kFp8, int kSteps>
__device__ __forceinline__ void Consume(const Kernel& p, const Stages& stages, TileScheduler walk,
                                        int block, int cluster, uint8_t* staged) {
  PipelineState ring;
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

// Copies row counts and starts of the groups to shared memory and finds the longest tile.
__device__ __forceinline__ void ReadGroups(const Kernel& p, Header& header,
                                           const ActiveGroups& list) {
  int longest = 0;
  for (int g = threadIdx.x; g < p.groups; g += blockDim.x) {
    // Bypasses L1, which may hold stale values read by an earlier kernel.
    const int count = p.group_rows ? __ldcg(p.group_rows + g) : p.rows;
    list.rows[g] = count;
    list.begins[g] = p.group_rows ? __ldcg(p.group_begins + g) : 0;
    longest = max(longest, min(count, kMaxTokens));
  }
  longest = __reduce_max_sync(~0u, longest);
  if (threadIdx.x % 32 == 0) atomicMax(&header.longest, longest);
  __syncthreads();
  if (threadIdx.x < 32) CompactGroups(header, list, p.groups);
}

// kConsumers warpgroups multiply 64 weight rows each; with weight_rows < 64 only those rows are
// valid.
template <bool kFp8, int kConsumers, int kSteps>
__global__ void __launch_bounds__(128 * (kConsumers + 1), 1)
    FewRowsKernel(const __grid_constant__ Kernel p, const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ CUtensorMap a_small_map,
                  const __grid_constant__ CUtensorMap b_map,
                  const __grid_constant__ CUtensorMap scales_map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const int ring_bytes = (kSharedBytes - sizeof(Header) - p.groups * kGroupListBytes) / 1024 * 1024;
  auto& header = *reinterpret_cast<Header*>(memory + ring_bytes);
  auto* words = reinterpret_cast<int32_t*>(&header + 1);
  const ActiveGroups list = {words, words + p.groups, words + 2 * p.groups};
  const int block = ptx::BlockOfCluster(), cluster = ptx::BlocksOfCluster();
  const int warpgroup = threadIdx.x / 128;

  if (threadIdx.x < kMaxStages) {
    ptx::BarrierInit(&header.full[threadIdx.x], kFp8 ? 3 : 2);
    ptx::BarrierInit(&header.empty[threadIdx.x], kConsumers * 4 * cluster * ptx::kWarpArrivals);
    ptx::FenceBarrierInit();
  } else if (threadIdx.x == kMaxStages) {
    header.longest = 0;
    ptx::PrefetchTensorMap(&a_map);
    if (kSteps == 1) ptx::PrefetchTensorMap(&a_small_map);
    ptx::PrefetchTensorMap(&b_map);
    if (kFp8) ptx::PrefetchTensorMap(&scales_map);
  }
  ptx::ClusterSync();  // the barriers of both blocks are initialized
  // No kernel of the chain writes weights. If the group sizes are known, the needed weights can be
  // fetched before the previous kernel has ended.
  const bool is_weight_producer = warpgroup == kConsumers && threadIdx.x % 128 / 32 == kWeights;
  if (!p.groups_ready) WaitForPriorKernels();
  ReadGroups(p, header, list);
  __syncthreads();
  if (!is_weight_producer) {
    if (p.groups_ready) WaitForPriorKernels();
    LaunchDependents();
  }

  Stages stages = {.memory = memory,
                   .weight_bytes = p.weight_rows * kGemmRowBytes * kSteps,
                   .full = header.full,
                   .empty = header.empty};
  stages.bytes = stages.weight_bytes + TokensOfTile(header.longest) * kGemmRowBytes * kSteps +
                 (kFp8 ? kScaleBytes : 0);
  stages.count = min(ring_bytes / stages.bytes, kMaxStages);
  const TileScheduler walk(p, header, list);
  if (warpgroup == kConsumers) {
    if constexpr (kConsumers > 1) ptx::DeallocateRegisters<40>();
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
    if (is_weight_producer) WaitForPriorKernels();
  } else {
    if constexpr (kConsumers > 1) ptx::AllocateRegisters<232>();
    Consume<kFp8, kSteps>(p, stages, walk, block, cluster, header.staged[threadIdx.x / 32]);
  }
  // A block must not exit while its partner may still arrive at its barriers.
  ptx::ClusterSync();
}

template <bool kFp8, int kConsumers, int kSteps>
cudaError_t Start(const GemmLaunch& launch, const PdlStream& chain) {
  static SharedMemoryOptIn setup;
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
      .groups_ready = p.groups_ready || p.group_rows == nullptr,
      .reads_once = p.group_rows || p.rows <= kMaxTokens,
      .rows = static_cast<int>(p.rows),
      .n = static_cast<int>(p.n),
      .groups = p.groups,
      .k_blocks = static_cast<int>((row_bytes + kGemmRowBytes - 1) / kGemmRowBytes),
      .weight_rows = launch.plan.weight_rows,
      .column_tiles = static_cast<int>((p.n + step - 1) / step),
      .float_output = p.float_output,
      .accumulate = p.accumulate};
  // Upper bound of the number of tiles; empty groups have none.
  const int64_t most_parts = (p.rows + kMaxTokens - 1) / kMaxTokens + p.groups;
  const int64_t clusters =
      std::min<int64_t>(launch.gpu.processors / cluster, most_parts * kernel.column_tiles);

  return LaunchClusters(FewRowsKernel<kFp8, kConsumers, kSteps>, static_cast<int>(clusters),
                        cluster, 128 * (kConsumers + 1), kSharedBytes, chain, kernel, launch.a_map,
                        launch.a_small_map, launch.b_map, launch.scales_map);
}

}  // namespace
}  // namespace few_rows

cudaError_t StartFewRowsGemm(const GemmLaunch& launch, const PdlStream& chain) {
  using few_rows::Start;
  const bool fp8 = launch.problem.fp8;
  if (launch.plan.weight_rows > 64)
    return fp8 ? Start<true, 2, 1>(launch, chain) : Start<false, 2, 1>(launch, chain);
  if (launch.plan.steps == 1)
    return fp8 ? Start<true, 1, 1>(launch, chain) : Start<false, 1, 1>(launch, chain);
  return fp8 ? Start<true, 1, 4>(launch, chain) : Start<false, 1, 4>(launch, chain);
}

}  // namespace switchyard::cuda
