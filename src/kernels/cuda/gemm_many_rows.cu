// Groups of many rows: tokens stand on wgmma's side of 64 rows, tiles are as large as registers
// allow, and the two blocks of a cluster share their rows of A.
#include <algorithm>

#include "kernels/cuda/gemm_tiles.cuh"
#include "kernels/cuda/kernel_setup.h"

#ifndef VARIANT
#define VARIANT 1
#endif

namespace switchyard::cuda {
namespace {

constexpr int kBlockM = kManyRowsTokens;
constexpr int kCluster = 2;
constexpr int kConsumers = 2;  // warpgroups that multiply, 64 rows of the tile each
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kWaveBlocks = 16;  // row blocks that a wave of tiles goes over, for L2

struct Fp8 {
  static constexpr bool kScaled = true;
  static constexpr int kBlockN = kManyRowsWeightsFp8, kStages = 5, kElementBytes = 1, kSlabs = 1;
};
struct Bf16 {
  static constexpr bool kScaled = false;
  static constexpr int kBlockN = kManyRowsWeightsBf16, kStages = 4, kElementBytes = 2, kSlabs = 2;
};

template <typename Format>
struct Shared {
  static constexpr int kSlabs = Format::kSlabs;  // staged at a time
  alignas(1024) uint8_t a[Format::kStages][kBlockM * kGemmRowBytes];
  alignas(1024) uint8_t b[Format::kStages][Format::kBlockN * kGemmRowBytes];
  alignas(1024) uint8_t d[kConsumers][kSlabs][64 * 128];
  alignas(128) float a_scales[Format::kStages][Format::kScaled ? kBlockM : 32];
  alignas(8) uint64_t full[Format::kStages];
  uint64_t empty[Format::kStages];

  static constexpr uint32_t kStageBytes =
      sizeof(a[0]) + sizeof(b[0]) + (Format::kScaled ? sizeof(a_scales[0]) : 0);
};

struct Kernel {
  const float* b_scales;
  const float* bias;
  void* d;
  int64_t ldd;
  const int32_t* block_groups;  // null: all are group 0's
  int rows, n;
  int row_blocks, column_pairs, k_blocks;
  bool float_output, accumulate;
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

__device__ __forceinline__ int GroupOf(const Kernel& p, const Tile& tile) {
  return p.block_groups ? p.block_groups[tile.row_block] : 0;
}

template <typename Format>
__device__ __forceinline__ void Produce(const Kernel& p, const CUtensorMap& a_map,
                                        const CUtensorMap& b_map, const CUtensorMap& scales_map,
                                        Shared<Format>& shared, int block_of_cluster) {
  constexpr int kBlockK = kGemmRowBytes / Format::kElementBytes;
  Ring ring;
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
      // Each block of the cluster fetches a part of the rows for both.
      constexpr int kPart = kBlockM / kCluster;
      ptx::LoadBoxToBlocks(shared.a[s] + block_of_cluster * kPart * kGemmRowBytes, &a_map,
                           kb * kBlockK, row + block_of_cluster * kPart, &shared.full[s],
                           (1 << kCluster) - 1);
      ptx::LoadBox(shared.b[s], &b_map, kb * kBlockK, b_row, &shared.full[s]);
      if constexpr (Format::kScaled) {
        ptx::LoadBox(shared.a_scales[s], &scales_map, row, kb, &shared.full[s]);
        ptx::LoadBox(shared.a_scales[s] + 64, &scales_map, row + 64, kb, &shared.full[s]);
      }
    }
  }
}

// Says to the producers of both blocks that this warpgroup has read a stage.
template <typename Format>
__device__ __forceinline__ void Release(Shared<Format>& shared, int stage, int thread) {
  if (thread < kCluster) ptx::BarrierArriveAt(&shared.empty[stage], thread);
}

// Adds products of 128 elements along K, scaled, to the sums of columns from kFirst on.
template <int kFirst, int kCount, int kSums>
__device__ __forceinline__ void Promote(float (&sums)[kSums], const float (&part)[kCount],
                                        const float (&scales)[3][2]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const int to = kFirst / 2 + j;
    sums[to] = __fmaf_rn(scales[to / 32][j / 2 % 2], part[j], sums[to]);
  }
}

// Scales of a tile of 192 columns, which begins at a multiple of 64: its first and its last 64
// columns may be of different blocks of 128, and those between are of one of the two.
struct WeightScales {
  const float *first, *last;  // of step 0
  bool middle_is_first;

  __device__ WeightScales(const Kernel& p, int group, int column) {
    const int rows = (p.n + 127) / 128;
    const float* scales = p.b_scales + int64_t{group} * rows * p.k_blocks;
    first = scales + int64_t{min(column / 128, rows - 1)} * p.k_blocks;
    last = scales + int64_t{min((column + 128) / 128, rows - 1)} * p.k_blocks;
    middle_is_first = column % 128 == 0;
  }
};

// FP8: the matrix unit adds with fewer bits than float32 has, so its sums are taken over every 128
// elements only, scaled, and added to sums in registers.
#if VARIANT == 0
template <typename Format>
__device__ __forceinline__ void MultiplyScaled(const Kernel& p, Shared<Format>& shared, Ring& ring,
                                               int group, int column, int warpgroup, int thread,
                                               float (&sums)[Format::kBlockN / 2]) {
  const int lane = thread % 32, row = warpgroup * 64 + thread / 32 * 16 + lane / 4;
  const WeightScales weights(p, group, column);
  float first_of_lane = 0.0f, last_of_lane = 0.0f;  // of the steps kb / 32 · 32 + lane
  float part[Format::kBlockN / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(Format::kStages)) {
    const int s = ring.stage;
    if (kb % 32 == 0 && kb + lane < p.k_blocks) {
      first_of_lane = weights.first[kb + lane];
      last_of_lane = weights.last[kb + lane];
    }
    ptx::BarrierWait(&shared.full[s], ring.parity);
    if (kb == 0 && warpgroup == 1) ptx::NamedBarrier(1 + kConsumers, 2 * 128);
    StartMultiply<true>(shared.a[s] + warpgroup * 64 * kGemmRowBytes, shared.b[s], false, part);
    const float b0 = __shfl_sync(~0u, first_of_lane, kb % 32);
    const float b2 = __shfl_sync(~0u, last_of_lane, kb % 32);
    const float b1 = weights.middle_is_first ? b0 : b2;
    const float a0 = shared.a_scales[s][row], a1 = shared.a_scales[s][row + 8];
    const float scales[3][2] = {{a0 * b0, a1 * b0}, {a0 * b1, a1 * b1}, {a0 * b2, a1 * b2}};
    ptx::MultiplyWait<0>();
    if (kb == 0 && warpgroup == 0) ptx::NamedArrive(1 + kConsumers, 2 * 128);
    ptx::PinRegisters(part);
    Release(shared, s, thread);
    Promote<0>(sums, part, scales);
  }
}
#elif VARIANT == 1
// Products of a tile's two halves take turns: while one half is added the matrix unit has the other.
template <typename Format>
__device__ __forceinline__ void MultiplyScaled(const Kernel& p, Shared<Format>& shared, Ring& ring,
                                               int group, int column, int warpgroup, int thread,
                                               float (&sums)[Format::kBlockN / 2]) {
  constexpr int kHalf = Format::kBlockN / 2;
  const int lane = thread % 32, row = warpgroup * 64 + thread / 32 * 16 + lane / 4;
  const WeightScales weights(p, group, column);
  float low[kHalf / 2], high[kHalf / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  float b0 = weights.first[0], b2 = weights.last[0];
  const auto scales_of = [&](int s, float (&scales)[3][2]) {
    const float a0 = shared.a_scales[s][row], a1 = shared.a_scales[s][row + 8];
    const float b1 = weights.middle_is_first ? b0 : b2;
    scales[0][0] = a0 * b0;
    scales[0][1] = a1 * b0;
    scales[1][0] = a0 * b1;
    scales[1][1] = a1 * b1;
    scales[2][0] = a0 * b2;
    scales[2][1] = a1 * b2;
  };
  const auto steps = [&]<int kSteps>(int kb) {
    ptx::BarrierWait(&shared.full[ring.stage], ring.parity);
    StartMultiply<true>(shared.a[ring.stage] + warpgroup * 64 * kGemmRowBytes,
                        shared.b[ring.stage], false, low);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int s = ring.stage;
      StartMultiply<true>(shared.a[s] + warpgroup * 64 * kGemmRowBytes,
                          shared.b[s] + kHalf * kGemmRowBytes, false, high);
      float scales[3][2];
      scales_of(s, scales);
      const int next = min(kb + i + 1, p.k_blocks - 1);
      b0 = weights.first[next];
      b2 = weights.last[next];
      ptx::MultiplyWait<1>();
      ptx::PinRegisters(low);
      Promote<0>(sums, low, scales);
      ring.Next(Format::kStages);
      if (i + 1 < kSteps) {
        ptx::BarrierWait(&shared.full[ring.stage], ring.parity);
        StartMultiply<true>(shared.a[ring.stage] + warpgroup * 64 * kGemmRowBytes,
                            shared.b[ring.stage], false, low);
        ptx::MultiplyWait<1>();
      } else {
        ptx::MultiplyWait<0>();
      }
      ptx::PinRegisters(high);
      Release(shared, s, thread);
      Promote<kHalf>(sums, high, scales);
    }
  };
  int kb = 0;
  for (; kb + 4 <= p.k_blocks; kb += 4) steps.template operator()<4>(kb);
  for (; kb < p.k_blocks; ++kb) steps.template operator()<1>(kb);
}
#endif

template <typename Format>
__device__ __forceinline__ void MultiplyPlain(const Kernel& p, Shared<Format>& shared, Ring& ring,
                                              int warpgroup, int thread,
                                              float (&sums)[Format::kBlockN / 2]) {
  int previous = -1;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int kb = 0; kb < p.k_blocks; ++kb, ring.Next(Format::kStages)) {
    const int s = ring.stage;
    ptx::BarrierWait(&shared.full[s], ring.parity);
    StartMultiply<false>(shared.a[s] + warpgroup * 64 * kGemmRowBytes, shared.b[s], true, sums);
    ptx::MultiplyWait<1>();  // the block before this one is done
    if (previous >= 0) Release(shared, previous, thread);
    previous = s;
  }
  ptx::MultiplyWait<0>();
  ptx::PinRegisters(sums);
  Release(shared, previous, thread);
}

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

// Four lanes write 32 bytes in a row, as much as memory takes at a time.
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
__device__ __forceinline__ void Consume(const Kernel& p, const CUtensorMap& d_map,
                                        Shared<Format>& shared, int block_of_cluster,
                                        int warpgroup) {
  const int thread = threadIdx.x % 128;
  Ring ring;
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
      MultiplyPlain<Format>(p, shared, ring, warpgroup, thread, sums);
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
      ptx::BarrierInit(&shared.empty[s], kConsumers * kCluster);
    }
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&a_map);
    ptx::PrefetchTensorMap(&b_map);
    if (Format::kScaled) ptx::PrefetchTensorMap(&scales_map);
    if (!p.float_output) ptx::PrefetchTensorMap(&d_map);
  }
  ptx::ClusterSync();

  if (warpgroup == kConsumers) {
    ptx::GiveRegisters<32>();
    if (threadIdx.x == kConsumers * 128)
      Produce<Format>(p, a_map, b_map, scales_map, shared, block_of_cluster);
  } else {
    ptx::TakeRegisters<240>();
    Consume<Format>(p, d_map, shared, block_of_cluster, warpgroup);
  }
  // A block whose barriers its partner may still arrive at has to stay.
  ptx::ClusterSync();
}

template <typename Format>
cudaError_t Start(const GemmLaunch& launch, cudaStream_t stream) {
  static KernelSetup setup;
  const cudaError_t error = setup.On(launch.gpu.index, ManyRowsKernel<Format>, sizeof(Shared<Format>));
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

cudaError_t StartManyRowsGemm(const GemmLaunch& launch, cudaStream_t stream) {
  return launch.problem.fp8 ? Start<Fp8>(launch, stream) : Start<Bf16>(launch, stream);
}

}  // namespace switchyard::cuda
