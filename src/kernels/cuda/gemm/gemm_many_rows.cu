// Problem: D [m, n] = A [m, k] · B [n, k]ᵀ, dense or for each group, with many rows per group
// (prefill). Tokens are wgmma's 64-row operand.
// Tiling: 128 tokens × 256 weights in bfloat16, 128 × 192 in FP8 (as large as registers allow). A
// persistent grid of two-block clusters that share their rows of A by multicast, at most one block
// per SM.
// Pipeline: four stages of 128 bytes along K; 384 threads: two consumer warpgroups and a producer
// warpgroup, one thread of which issues TMA loads.
// Measured on one H200, 8 groups of about 4096 rows: 67 to 76 % of 989 TFLOP/s in bfloat16, 61 to
// 69 % of 1979 TFLOP/s in FP8 (three shapes, docs/performance.md).
// Source: DeepGEMM's description (gemm.h).
#include <algorithm>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_scaled.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"

namespace switchyard::cuda::many_rows {

// Tile sizes, tile order and shared memory layout of the many-rows GEMM.

constexpr int kBlockM = kManyRowsTokens;
constexpr int kCluster = kStageCluster;
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
  static constexpr int kBlockN = Format::kBlockN, kStages = Format::kStages;
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

// Consumer warpgroups (main loop) of the many-rows GEMM. FP8: MultiplyScaled.

// bfloat16: the tensor core accumulates over all of K.
template <typename Format>
__device__ __forceinline__ void MultiplyPlain(const Kernel& p, Shared<Format>& shared,
                                              PipelineState& ring, int warpgroup,
                                              float (&sums)[Format::kBlockN / 2]) {
  const StageReader<Shared<Format>> reader(shared, warpgroup);
  int previous = -1;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(Format::kStages)) {
    const int s = ring.stage;
    ptx::BarrierWait(reader.Full(ring), ring.parity);
    reader.template Start<false>(s, true, sums);
    ptx::WgmmaWait<1>();  // the previous stage is done
    if (previous >= 0) reader.Release(previous);
    previous = s;
  }
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(sums);
  reader.Release(previous);
}

// Epilogue of the many-rows GEMM.

template <int kCount>
__device__ __forceinline__ void AddBias(const Kernel& p, int group, int column, int lane,
                                        float (&sums)[kCount]) {
  const float* bias = p.bias + int64_t{group} * p.n;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int c = column + 8 * j + 2 * (lane % 4);
    const float even = c < p.n ? bias[c] : 0.0f, odd = c + 1 < p.n ? bias[c + 1] : 0.0f;
    sums[4 * j] = __fadd_rn(sums[4 * j], even);
    sums[4 * j + 1] = __fadd_rn(sums[4 * j + 1], odd);
    sums[4 * j + 2] = __fadd_rn(sums[4 * j + 2], even);
    sums[4 * j + 3] = __fadd_rn(sums[4 * j + 3], odd);
  }
}

// Four lanes write 32 contiguous bytes, one memory sector.
template <int kCount>
__device__ __forceinline__ void StoreFloats(const Kernel& p, int row, int column, int thread,
                                            const float (&sums)[kCount]) {
  const int lane = thread % 32;
  const bool pairs = p.n % 2 == 0 && p.ldd % 2 == 0;  // D is aligned to 8 bytes
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + thread / 32 * 16 + lane / 4 + half * 8;
    if (r >= p.rows) continue;
    float* d = static_cast<float*>(p.d) + r * p.ldd;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const int c = column + 8 * j + 2 * (lane % 4);
      float2 x = {sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
      if (pairs && c < p.n) {
        auto* to = reinterpret_cast<float2*>(d + c);
        if (p.accumulate) x = {__fadd_rn(to->x, x.x), __fadd_rn(to->y, x.y)};
        *to = x;
      } else {
        if (c < p.n) d[c] = p.accumulate ? __fadd_rn(d[c], x.x) : x.x;
        if (c + 1 < p.n) d[c + 1] = p.accumulate ? __fadd_rn(d[c + 1], x.y) : x.y;
      }
    }
  }
}

// Stages slabs of 64 columns in shared memory, with TMA's 128-byte swizzle, and stores them by TMA.
template <typename Format>
__device__ __forceinline__ void StoreTile(const CUtensorMap& d_map, Shared<Format>& shared, int row,
                                          int column, int warpgroup, int thread,
                                          const float (&sums)[Format::kBlockN / 2]) {
  constexpr int kSlabs = Shared<Format>::kSlabs;
  const int lane = thread % 32;
  const int in_tile = thread / 32 * 16 + lane % 16;  // row whose address this lane provides
#pragma unroll
  for (int first = 0; first < Format::kBlockN / 64; first += kSlabs) {
    if (thread == 0) ptx::WaitStoresRead<0>();
    ptx::NamedBarrier(1 + warpgroup, 128);
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      uint8_t* base = shared.d[warpgroup][slab] + in_tile * 128;
#pragma unroll
      for (int chunk = 0; chunk < 8; chunk += 2) {
        const float* x = &sums[((first + slab) * 8 + chunk) * 4];
        const int place = (chunk + lane / 16) ^ (in_tile % 8);
        ptx::StoreMatrices(base + place * 16, Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]),
                           Pack(x[6], x[7]));
      }
    }
    ptx::FenceAsyncProxy();
    ptx::NamedBarrier(1 + warpgroup, 128);
    if (thread == 0) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab)
        ptx::StoreBox(&d_map, shared.d[warpgroup][slab], column + (first + slab) * 64,
                      row + warpgroup * 64);
      ptx::CommitStores();
    }
  }
}

}  // namespace switchyard::cuda::many_rows

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
      MultiplyScaled(p, shared, ring, group, column, warpgroup, thread, sums);
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
