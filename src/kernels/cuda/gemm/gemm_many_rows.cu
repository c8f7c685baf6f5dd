// Grouped and dense GEMM D = A · Bᵀ for many rows per group (prefill). Tokens are wgmma's 64-row
// operand. Tile of a block: 128 tokens × 256 weights in bfloat16, 128 × 192 in FP8 (as large as
// registers allow). A pipeline of four stages takes steps of 128 bytes along K. Persistent grid of
// two-block clusters that share their rows of A by multicast, at most one block per SM. A block has
// 384 threads: two consumer warpgroups and a producer warpgroup, one thread of which issues TMA
// loads. Source: DeepGEMM's description (gemm.h).
#include <algorithm>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_many_rows_multiply.cuh"
#include "kernels/cuda/gemm/gemm_many_rows_store.cuh"

namespace switchyard::cuda {
namespace many_rows {
namespace {

template <typename Format>
__device__ __forceinline__ void Produce(const Kernel& p, const CUtensorMap& a_map,
                                        const CUtensorMap& b_map, const CUtensorMap& scales_map,
                                        Shared<Format>& shared, int block_of_cluster) {
  constexpr int kBlockK = kGemmRowBytes / Format::kElementBytes;
  PipelineState ring;
  const int tiles = p.row_blocks * p.column_pairs;
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf(p, index, block_of_cluster);
    const int group = GroupOf(p, tile);
    if (group < 0) continue;
    const int row = tile.row_block * kBlockM;
    const int b_row = group * p.n + tile.column_block * Format::kBlockN;
    for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(Format::kStages)) {
      const int s = ring.stage;
      ptx::BarrierWait(&shared.empty[s], ring.parity ^ 1);
      ptx::BarrierExpect(&shared.full[s], Shared<Format>::kStageBytes);
      // Each block of the cluster loads half of the rows and multicasts them to both blocks.
      constexpr int kPart = kBlockM / kCluster;
      ptx::LoadBoxMulticast(shared.a[s] + block_of_cluster * kPart * kGemmRowBytes, &a_map,
                            kb * kBlockK, row + block_of_cluster * kPart, &shared.full[s],
                            (1 << kCluster) - 1);
      ptx::LoadBox(shared.b[s], &b_map, kb * kBlockK, b_row, &shared.full[s]);
      if constexpr (Format::kScaled)
        ptx::LoadBox(shared.a_scales[s], &scales_map, row, kb, &shared.full[s]);
    }
  }
}

template <typename Format>
__device__ __forceinline__ void Consume(const Kernel& p, const CUtensorMap& d_map,
                                        Shared<Format>& shared, int block_of_cluster,
                                        int warpgroup) {
  const int thread = threadIdx.x % 128;
  PipelineState ring;
  float sums[Format::kBlockN / 2];
  const int tiles = p.row_blocks * p.column_pairs;
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf(p, index, block_of_cluster);
    const int group = GroupOf(p, tile);
    if (group < 0) continue;
    const int row = tile.row_block * kBlockM, column = tile.column_block * Format::kBlockN;
    if constexpr (Format::kScaled) {
      MultiplyScaled<Format>(p, shared, ring, group, column, warpgroup, thread, sums);
    } else {
      MultiplyPlain<Format>(p, shared, ring, warpgroup, sums);
    }
    if (p.bias) AddBias(p, group, column, thread % 32, sums);
    if (p.float_output) {
      StoreFloats(p, row + warpgroup * 64, column, thread, sums);
    } else {
      StoreTile<Format>(d_map, shared, row, column, warpgroup, thread, sums);
    }
  }
  if (thread == 0) ptx::WaitStoresRead<0>();
}

template <typename Format>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCluster, 1, 1)
    ManyRowsKernel(const __grid_constant__ Kernel p, const __grid_constant__ CUtensorMap a_map,
                   const __grid_constant__ CUtensorMap b_map,
                   const __grid_constant__ CUtensorMap scales_map,
                   const __grid_constant__ CUtensorMap d_map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<Format>*>(memory);
  const int block_of_cluster = ptx::BlockOfCluster();
  const int warpgroup = threadIdx.x / 128;

  if (threadIdx.x == 0) {
    for (int s = 0; s < Format::kStages; ++s) {
      ptx::BarrierInit(&shared.full[s], 1);
      ptx::BarrierInit(&shared.empty[s], kConsumers * 4 * kCluster * ptx::kWarpArrivals);
    }
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&a_map);
    ptx::PrefetchTensorMap(&b_map);
    if (Format::kScaled) ptx::PrefetchTensorMap(&scales_map);
    if (!p.float_output) ptx::PrefetchTensorMap(&d_map);
  }
  ptx::ClusterSync();

  if (warpgroup == kConsumers) {
    ptx::DeallocateRegisters<40>();
    if (threadIdx.x == kConsumers * 128)
      Produce<Format>(p, a_map, b_map, scales_map, shared, block_of_cluster);
  } else {
    ptx::AllocateRegisters<232>();
    Consume<Format>(p, d_map, shared, block_of_cluster, warpgroup);
  }
  // A block must not exit while its partner may still arrive at its barriers.
  ptx::ClusterSync();
}

template <typename Format>
cudaError_t Start(const GemmLaunch& launch, cudaStream_t stream) {
  static SharedMemoryOptIn setup;
  const cudaError_t error =
      setup.On(launch.gpu.index, ManyRowsKernel<Format>, sizeof(Shared<Format>));
  if (error != cudaSuccess) return error;
  const GemmProblem& p = launch.problem;
  constexpr int kColumns = Format::kBlockN * kCluster;
  const int64_t row_bytes = p.k * Format::kElementBytes;
  const Kernel kernel = {
      .b_scales = p.b_scales,
      .bias = p.bias,
      .d = p.d,
      .ldd = p.ldd,
      .block_groups = p.block_groups,
      .rows = static_cast<int>(p.rows),
      .n = static_cast<int>(p.n),
      .row_blocks = static_cast<int>((p.rows + kBlockM - 1) / kBlockM),
      .column_pairs = static_cast<int>((p.n + kColumns - 1) / kColumns),
      .k_blocks = static_cast<int>((row_bytes + kGemmRowBytes - 1) / kGemmRowBytes),
      .float_output = p.float_output,
      .accumulate = p.accumulate};
  const int tiles = kernel.row_blocks * kernel.column_pairs;
  const int blocks = std::min(launch.gpu.processors / kCluster, tiles) * kCluster;
  ManyRowsKernel<Format><<<blocks, kThreads, sizeof(Shared<Format>), stream>>>(
      kernel, launch.a_map, launch.b_map, launch.scales_map, launch.d_map);
  return cudaGetLastError();
}

}  // namespace
}  // namespace many_rows

cudaError_t StartManyRowsGemm(const GemmLaunch& launch, cudaStream_t stream) {
  using namespace many_rows;
  return launch.problem.fp8 ? Start<Fp8>(launch, stream) : Start<Bf16>(launch, stream);
}

}  // namespace switchyard::cuda
