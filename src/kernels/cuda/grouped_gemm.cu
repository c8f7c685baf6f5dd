#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/grouped_gemm_launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kBlockM = kGroupBlockRows;
constexpr int kConsumers = 2;  // warpgroups that multiply, 64 rows of the tile each
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kStagger = 1 + kConsumers;  // named barrier; 1 … kConsumers are each warpgroup's own
constexpr int kWaveBlocks = 16;           // row blocks that a wave of tiles goes over, for L2

struct Fp8 {
  static constexpr bool kScaled = true;
  static constexpr int kBlockN = kBlockNFp8, kStages = 5, kElementBytes = 1, kSlabs = 1;
};
struct Bf16 {
  static constexpr bool kScaled = false;
  static constexpr int kBlockN = kBlockNBf16, kStages = 4, kElementBytes = 2, kSlabs = 2;
};

template <typename Format>
struct Shared {
  static constexpr int kSlabs = Format::kSlabs;  // staged at a time
  alignas(1024) uint8_t a[Format::kStages][kBlockM * kRowBytes];
  alignas(1024) uint8_t b[Format::kStages][Format::kBlockN * kRowBytes];
  alignas(1024) uint8_t d[kConsumers][kSlabs][64 * 128];
  alignas(128) float a_scales[Format::kStages][Format::kScaled ? kBlockM : 4];
  alignas(8) uint64_t full[Format::kStages];
  uint64_t empty[Format::kStages];

  static constexpr uint32_t kStageBytes =
      sizeof(a[0]) + sizeof(b[0]) + (Format::kScaled ? sizeof(a_scales[0]) : 0);
};

struct Kernel {
  const float* a_scales;
  const float* b_scales;
  const int32_t* block_groups;
  int rows, n, k;
  int row_blocks, column_pairs, k_blocks;
};

// Tile pairs in the order in which clusters take them: kWaveBlocks row blocks by all columns, then
// the next, so that what clusters read at a time stays in L2.
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

// Where a thread stands in the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <typename Format>
__device__ __forceinline__ void Produce(const Kernel& p, const CUtensorMap& a_map,
                                        const CUtensorMap& b_map, Shared<Format>& shared,
                                        int block_of_cluster) {
  constexpr int kBlockK = kRowBytes / Format::kElementBytes;
  Ring<Format::kStages> ring;
  const int tiles = p.row_blocks * p.column_pairs;
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf(p, index, block_of_cluster);
    const int group = p.block_groups[tile.row_block];
    if (group < 0) continue;
    const int row = tile.row_block * kBlockM;
    const int b_row = group * p.n + tile.column_block * Format::kBlockN;
    for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next()) {
      const int s = ring.stage;
      ptx::BarrierWait(&shared.empty[s], ring.parity ^ 1);
      ptx::BarrierExpect(&shared.full[s], Shared<Format>::kStageBytes);
      // Each block of the cluster fetches a part of the rows for both.
      constexpr int kPart = kBlockM / kCluster;
      ptx::LoadBoxToBlocks(shared.a[s] + block_of_cluster * kPart * kRowBytes, &a_map, kb * kBlockK,
                           row + block_of_cluster * kPart, &shared.full[s], (1 << kCluster) - 1);
      ptx::LoadBox(shared.b[s], &b_map, kb * kBlockK, b_row, &shared.full[s]);
      if constexpr (Format::kScaled)
        ptx::LoadBytes(shared.a_scales[s], p.a_scales + int64_t{kb} * p.rows + row,
                       sizeof(shared.a_scales[s]), &shared.full[s]);
    }
  }
}

// Says to the producers of both blocks that this warpgroup has read a stage.
template <typename Format>
__device__ __forceinline__ void Release(Shared<Format>& shared, int stage, int thread) {
  if (thread < kCluster) ptx::BarrierArriveAt(&shared.empty[stage], thread);
}

template <typename Format, int kCount>
__device__ __forceinline__ void Multiply(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  if constexpr (Format::kScaled) {
    ptx::MultiplyFp8N192(d, a, b, add);
  } else {
    ptx::MultiplyBf16N256(d, a, b, add);
  }
}

// One step along K: starts the products of a stage, which end some time after a MultiplyWait.
template <typename Format, int kCount>
__device__ __forceinline__ void StartMultiply(Shared<Format>& shared, int stage, int warpgroup,
                                              bool add, float (&d)[kCount]) {
  const uint64_t a = ptx::MatrixDescriptor(shared.a[stage] + warpgroup * 64 * kRowBytes);
  const uint64_t b = ptx::MatrixDescriptor(shared.b[stage]);
  ptx::PinRegisters(d);
  ptx::MultiplyFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) Multiply<Format>(d, a + 2 * i, b + 2 * i, add || i > 0);
  ptx::MultiplyCommit();
  ptx::PinRegisters(d);
}

// A tile's products, as the thread's part of 64 × kBlockN sums: element 4j + i is row lane / 4 + 8
// (i / 2) of the warp's 16, column 8j + 2 (lane % 4) + i % 2.
//
// FP8: the matrix unit adds with fewer bits than float32 has, so its sums are taken over every 128
// elements only, scaled, and added to sums in registers. While one warpgroup adds, the matrix unit
// works for the other: the second one starts when the first has its first step, so that they do not
// wait for the same stage and then add at the same time.
//
// Scales of B are for 128 columns and a tile is 192 wide, beginning at a multiple of 64: its first
// and its last 64 columns have different scales, and those between share one of the two.
template <typename Format>
__device__ __forceinline__ void MultiplyScaled(const Kernel& p, Shared<Format>& shared,
                                               Ring<Format::kStages>& ring, int group, int column,
                                               int warpgroup, int thread,
                                               float (&sums)[Format::kBlockN / 2]) {
  const int lane = thread % 32, row = warpgroup * 64 + thread / 32 * 16 + lane / 4;
  const int scale_columns = (p.n + 127) / 128;
  const int first = min(column / 128, scale_columns - 1);
  const int last = min((column + Format::kBlockN - 64) / 128, scale_columns - 1);
  const bool middle_is_first = column % 128 == 0;
  const float* b_scales = p.b_scales + int64_t{group} * scale_columns * p.k_blocks;
  const float* b_first = b_scales + first * p.k_blocks;
  const float* b_last = b_scales + last * p.k_blocks;
  float first_of_lane = 0.0f, last_of_lane = 0.0f;  // of the steps kb / 32 · 32 + lane
  float part[Format::kBlockN / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next()) {
    const int s = ring.stage;
    if (kb % 32 == 0 && kb + lane < p.k_blocks) {
      first_of_lane = b_first[kb + lane];
      last_of_lane = b_last[kb + lane];
    }
    ptx::BarrierWait(&shared.full[s], ring.parity);
    if (kb == 0 && warpgroup == 1) ptx::NamedBarrier(kStagger, 2 * 128);
    StartMultiply<Format>(shared, s, warpgroup, false, part);
    const float b0 = __shfl_sync(~0u, first_of_lane, kb % 32);
    const float b2 = __shfl_sync(~0u, last_of_lane, kb % 32);
    const float b1 = middle_is_first ? b0 : b2;
    const float a0 = shared.a_scales[s][row], a1 = shared.a_scales[s][row + 8];
    const float scales[3][2] = {{a0 * b0, a1 * b0}, {a0 * b1, a1 * b1}, {a0 * b2, a1 * b2}};
    ptx::MultiplyWait<0>();
    if (kb == 0 && warpgroup == 0) ptx::NamedArrive(kStagger, 2 * 128);
    Release(shared, s, thread);
#pragma unroll
    for (int j = 0; j < Format::kBlockN / 2; j += 4) {
      sums[j] += scales[j / 32][0] * part[j];
      sums[j + 1] += scales[j / 32][0] * part[j + 1];
      sums[j + 2] += scales[j / 32][1] * part[j + 2];
      sums[j + 3] += scales[j / 32][1] * part[j + 3];
    }
  }
}

template <typename Format>
__device__ __forceinline__ void MultiplyPlain(const Kernel& p, Shared<Format>& shared,
                                              Ring<Format::kStages>& ring, int warpgroup,
                                              int thread, float (&sums)[Format::kBlockN / 2]) {
  int previous = -1;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next()) {
    const int s = ring.stage;
    ptx::BarrierWait(&shared.full[s], ring.parity);
    StartMultiply<Format>(shared, s, warpgroup, kb > 0, sums);
    ptx::MultiplyWait<1>();  // the block before this one is done
    if (previous >= 0) Release(shared, previous, thread);
    previous = s;
  }
  ptx::MultiplyWait<0>();
  ptx::PinRegisters(sums);
  Release(shared, previous, thread);
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Through shared memory in slabs of 64 columns, swizzled as the copy engine wants them.
template <typename Format>
__device__ __forceinline__ void StoreTile(const CUtensorMap& d_map, Shared<Format>& shared, int row,
                                          int column, int warpgroup, int thread,
                                          const float (&sums)[Format::kBlockN / 2]) {
  constexpr int kSlabs = Shared<Format>::kSlabs;
  const int lane = thread % 32;
  const int in_tile = thread / 32 * 16 + lane % 16;  // row that this lane gives the address of
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
    ptx::FenceForEngine();
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

template <typename Format>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCluster, 1, 1)
    GroupedGemmKernel(const __grid_constant__ Kernel p, const __grid_constant__ CUtensorMap a_map,
                      const __grid_constant__ CUtensorMap b_map,
                      const __grid_constant__ CUtensorMap d_map) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<Format>*>(memory);
  const int block_of_cluster = ptx::BlockOfCluster();
  const int warpgroup = threadIdx.x / 128;

  if (threadIdx.x == 0) {
    for (int s = 0; s < Format::kStages; ++s) {
      ptx::BarrierInit(&shared.full[s], 1);
      ptx::BarrierInit(&shared.empty[s], kConsumers * kCluster);
    }
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&a_map);
    ptx::PrefetchTensorMap(&b_map);
    ptx::PrefetchTensorMap(&d_map);
  }
  ptx::ClusterSync();

  if (warpgroup == kConsumers) {
    ptx::GiveRegisters<40>();
    if (threadIdx.x == kConsumers * 128) Produce<Format>(p, a_map, b_map, shared, block_of_cluster);
  } else {
    ptx::TakeRegisters<232>();
    const int thread = threadIdx.x % 128;
    Ring<Format::kStages> ring;
    float sums[Format::kBlockN / 2];
    const int tiles = p.row_blocks * p.column_pairs;
    for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
      const Tile tile = TileOf(p, index, block_of_cluster);
      const int group = p.block_groups[tile.row_block];
      if (group < 0) continue;
      if constexpr (Format::kScaled) {
        MultiplyScaled<Format>(p, shared, ring, group, tile.column_block * Format::kBlockN,
                               warpgroup, thread, sums);
      } else {
        MultiplyPlain<Format>(p, shared, ring, warpgroup, thread, sums);
      }
      StoreTile<Format>(d_map, shared, tile.row_block * kBlockM,
                        tile.column_block * Format::kBlockN, warpgroup, thread, sums);
    }
    if (thread == 0) ptx::WaitStoresRead<0>();
  }
  // A block whose barriers its partner may still arrive at has to stay.
  ptx::ClusterSync();
}

template <typename Format>
cudaError_t Start(const GroupedGemmLaunch& launch, cudaStream_t stream) {
  static const int kProcessors = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(GroupedGemmKernel<Format>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         sizeof(Shared<Format>));
    return count;
  }();
  const GroupedGemmParams& p = launch.params;
  const Kernel kernel = {.a_scales = p.a_scales,
                         .b_scales = p.b_scales,
                         .block_groups = p.block_groups,
                         .rows = static_cast<int>(p.rows),
                         .n = static_cast<int>(p.n),
                         .k = static_cast<int>(p.k),
                         .row_blocks = static_cast<int>(p.rows / kBlockM),
                         .column_pairs = static_cast<int>((p.n + Format::kBlockN * kCluster - 1) /
                                                          (Format::kBlockN * kCluster)),
                         .k_blocks = static_cast<int>(p.k * Format::kElementBytes / kRowBytes)};
  const int tiles = kernel.row_blocks * kernel.column_pairs;
  const int blocks = std::min(kProcessors / kCluster, tiles) * kCluster;
  GroupedGemmKernel<Format><<<blocks, kThreads, sizeof(Shared<Format>), stream>>>(
      kernel, launch.a_map, launch.b_map, launch.d_map);
  return cudaGetLastError();
}

}  // namespace

cudaError_t StartGroupedGemm(const GroupedGemmLaunch& launch, cudaStream_t stream) {
  return launch.fp8 ? Start<Fp8>(launch, stream) : Start<Bf16>(launch, stream);
}

}  // namespace switchyard::cuda
