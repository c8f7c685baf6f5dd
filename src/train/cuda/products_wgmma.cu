// Problem: grouped products of training on Hopper: D (+)= A · B for each group of rows, in bfloat16
// with float32 sums. Scheme: kernels/cuda/gemm/gemm_many_rows.cu, from which this kernel differs in
// two ways:
//
// - Groups have any number of rows at any row. A block computes the row tiles of all groups from
//   `begins`. Rows of the next group in a tile are computed and not stored.
// - Data and weight gradients read operands whose inner dimension is the slow one in memory. TMA
//   loads them in tiles of 64 inner rows × 64 columns, and wgmma reads these transposed
//   ("MN-major", PTX ISA, matrix descriptors). Nothing is transposed in memory.
//
// Tiling: 128 × 256 of D, 64 inner elements per pipeline stage. Two blocks of a cluster are
// neighbors along the columns of D and share A by multicast.
// Pipeline: four stages, two consumer warpgroups with 64 rows each, and a producer.
// Measured on one H200, of the rate of a bfloat16 product: gate and up of 64 experts 78 % forward,
// 81 % for the input and 68 % for the weight gradient; down 74, 75 and 67 %.
#include <algorithm>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "train/cuda/launch.cuh"
#include "train/cuda/products_problem.h"
#include "train/cuda/products_tiles.cuh"

namespace switchyard::train::gpu {
namespace {

using namespace products;  // NOLINT(google-build-using-namespace): this file is a part of it
using switchyard::cuda::PipelineState;

constexpr int kBlockN = 256, kBlockK = 64, kStages = 4;
constexpr int kUnitBytes = 64 * 128;  // 64 rows of 64 bfloat16

struct Shared {
  alignas(1024) uint8_t a[kStages][kConsumers][kUnitBytes];
  alignas(1024) uint8_t b[kStages][kBlockN / 64 * kUnitBytes];
  alignas(1024) uint8_t d[kConsumers][kUnitBytes];  // staging of 64 columns of D
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  int32_t first_tile[kMaxProductGroups + 1];  // row tiles of the groups before each group
};

// The code for Hopper. In machine code for other GPUs the kernel is empty, and it is not launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Descriptors of an operand's tiles in the pipeline stages. K-major: 128-byte rows along the inner
// dimension. MN-major: units of 64 inner rows × 64 columns, kUnitBytes apart.
template <bool kMnMajor>
class Descriptors {
 public:
  // Bytes between the operands of two wgmmas, which are 16 inner elements apart.
  static constexpr uint32_t kStep = kMnMajor ? 16 * 128 : 32;

  __device__ __forceinline__ explicit Descriptors(ptx::SharedAddr tile) {
    constexpr uint32_t kLeading = kMnMajor ? kUnitBytes >> 4 : 1;
    const uint32_t low = (ptx::Pinned(tile).address >> 4 & 0x3fff) | kLeading << 16;
    low_ = __shfl_sync(~0u, low, 0);
  }
  __device__ __forceinline__ uint64_t After(uint32_t bytes) const {
    return ptx::MatrixDescriptorOf(low_ + bytes / 16);
  }

 private:
  uint32_t low_;
};

template <ProductForm kForm>
struct Operands {
  static constexpr bool kColumnsA = kForm == ProductForm::kWeightGradient;
  static constexpr bool kColumnsB = kForm != ProductForm::kForward;

  Descriptors<kColumnsA> a;
  Descriptors<kColumnsB> b;

  __device__ __forceinline__ Operands(Shared& shared, int warpgroup)
      : a(shared.a[0][warpgroup]), b(shared.b[0]) {}

  // Starts the products of one stage, asynchronously.
  __device__ __forceinline__ void Start(int stage, float (&sums)[kBlockN / 2]) const {
    const uint32_t at_a = static_cast<uint32_t>(stage) * kConsumers * kUnitBytes;
    const uint32_t at_b = static_cast<uint32_t>(stage) * (kBlockN / 64) * kUnitBytes;
    ptx::PinRegisters(sums);
    ptx::WgmmaFence();
#pragma unroll
    for (int i = 0; i < kBlockK / 16; ++i)
      ptx::WgmmaBf16Majors<kColumnsA, kColumnsB>(sums, a.After(at_a + i * a.kStep),
                                                 b.After(at_b + i * b.kStep), true);
    ptx::WgmmaCommit();
    ptx::PinRegisters(sums);
  }
};

// Zeroes inner rows [valid, kBlockK) of a stage of a weight gradient: they belong to the next
// group. All consumer threads call it.
__device__ __forceinline__ void ClearTail(Shared& shared, int stage, int valid, int thread) {
  constexpr int kUnits = kConsumers + kBlockN / 64;
  const int pieces = (kBlockK - valid) * 8;  // of 16 bytes, in each unit
  for (int i = thread; i < kUnits * pieces; i += kConsumers * 128) {
    const int unit = i / pieces, at = valid * 128 + i % pieces * 16;
    uint8_t* base = unit < kConsumers ? shared.a[stage][unit]
                                      : shared.b[stage] + (unit - kConsumers) * kUnitBytes;
    *reinterpret_cast<uint4*>(base + at) = make_uint4(0, 0, 0, 0);
  }
  ptx::FenceAsyncProxy();
  ptx::NamedBarrier(3, kConsumers * 128);
}

// Old elements of D that a thread loads before it uses the first one: loads of a batch overlap.
constexpr int kBatch = 16;

// Adds the old elements of D, so that a sum is rounded once.
__device__ __forceinline__ void AddOld(const Arguments& p, const Tile& tile, int64_t row, int lane,
                                       float (&sums)[kBlockN / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + lane / 4 + half * 8;
    if (r >= tile.row_end) continue;
    const int64_t first = tile.column + 2 * (lane % 4);
    const auto* d = static_cast<const uint16_t*>(p.d.data) + r * p.ldd + first;
#pragma unroll
    for (int j = 0; j < kBlockN / 8; j += kBatch) {
      uint32_t old[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        old[i] = first + 8 * (j + i) < p.n  // n is even
                     ? *reinterpret_cast<const uint32_t*>(d + 8 * (j + i))
                     : 0;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        sums[4 * (j + i) + 2 * half] += Low(old[i]);
        sums[4 * (j + i) + 2 * half + 1] += High(old[i]);
      }
    }
  }
}

template <ProductForm kForm>
__device__ __forceinline__ void Produce(const Arguments& p, const CUtensorMap& a_map,
                                        const CUtensorMap& b_map, Shared& shared,
                                        int block_of_cluster) {
  PipelineState ring;
  const int tiles = TileCount<kForm, kBlockN>(p, shared.first_tile);
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf<kForm, kBlockN>(p, shared.first_tile, index, block_of_cluster);
    const int row = static_cast<int>(tile.row) + block_of_cluster * 64;
    const int column = static_cast<int>(tile.column);
    const int steps = static_cast<int>((tile.inner + kBlockK - 1) / kBlockK);
    for (int step = 0; step < steps; ++step, ring.Next(kStages)) {
      const int s = ring.stage;
      const int inner = static_cast<int>(tile.inner_begin) + step * kBlockK;
      ptx::BarrierWait(&shared.empty[s], ring.parity ^ 1);
      ptx::BarrierExpect(&shared.full[s], sizeof(shared.a[0]) + sizeof(shared.b[0]));
      // Each block of the cluster loads one unit of A, and multicasts it to both blocks.
      const bool columns = kForm == ProductForm::kWeightGradient;
      ptx::LoadBoxMulticast(shared.a[s][block_of_cluster], &a_map, columns ? row : inner,
                            columns ? inner : row, &shared.full[s], (1 << kCluster) - 1);
      if constexpr (kForm == ProductForm::kForward) {
        ptx::LoadBox(shared.b[s], &b_map, inner, column, tile.group, &shared.full[s]);
      } else {
#pragma unroll
        for (int i = 0; i < kBlockN / 64; ++i) {
          uint8_t* to = shared.b[s] + i * kUnitBytes;
          if constexpr (kForm == ProductForm::kInputGradient) {
            ptx::LoadBox(to, &b_map, column + i * 64, inner, tile.group, &shared.full[s]);
          } else {
            ptx::LoadBox(to, &b_map, column + i * 64, inner, &shared.full[s]);
          }
        }
      }
    }
  }
}

template <ProductForm kForm>
__device__ __forceinline__ void Consume(const Arguments& p, Shared& shared, int block_of_cluster,
                                        int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int warp = thread % 128 / kWarp;
  const Operands<kForm> operands(shared, warpgroup);
  PipelineState ring;
  const int tiles = TileCount<kForm, kBlockN>(p, shared.first_tile);
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf<kForm, kBlockN>(p, shared.first_tile, index, block_of_cluster);
    const int steps = static_cast<int>((tile.inner + kBlockK - 1) / kBlockK);
    float sums[kBlockN / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    int previous = -1;
    for (int step = 0; step < steps; ++step, ring.Next(kStages)) {
      const int s = ring.stage;
      ptx::BarrierWait(&shared.full[s], ring.parity);
      if constexpr (kForm == ProductForm::kWeightGradient) {
        const int valid = static_cast<int>(min(int64_t{kBlockK}, tile.inner - step * kBlockK));
        if (valid < kBlockK) ClearTail(shared, s, valid, thread);
      }
      operands.Start(s, sums);
      ptx::WgmmaWait<1>();  // the previous stage is done
      if (previous >= 0) ptx::BarrierArriveWarpAt(&shared.empty[previous], kCluster);
      previous = s;
    }
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums);
    if (previous >= 0) ptx::BarrierArriveWarpAt(&shared.empty[previous], kCluster);
    if (steps == 0 && p.accumulate) continue;
    const int64_t row = tile.row + warpgroup * 64 + warp * 16;
    if (p.d.bf16) {
      if (p.accumulate) AddOld(p, tile, row, lane, sums);
      StoreRounded<kBlockN>(p, tile, row, lane, shared.d[warpgroup] + warp * 16 * 128, sums);
    } else {
      StoreFloats<kBlockN>(p, tile, row, lane, sums);
    }
  }
}

#endif

template <ProductForm kForm>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCluster, 1, 1)
    WgmmaProductKernel(const __grid_constant__ Arguments p,
                       const __grid_constant__ CUtensorMap a_map,
                       const __grid_constant__ CUtensorMap b_map) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int block_of_cluster = static_cast<int>(ptx::BlockOfCluster());
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::BarrierInit(&shared.full[s], 1);
      ptx::BarrierInit(&shared.empty[s], kConsumers * 4 * kCluster * ptx::kWarpArrivals);
    }
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&a_map);
    ptx::PrefetchTensorMap(&b_map);
  }
  if (kForm != ProductForm::kWeightGradient && warpgroup == 1 && threadIdx.x % 128 < kWarp)
    CountRowTiles(p, static_cast<int>(threadIdx.x) % kWarp, shared.first_tile);
  ptx::ClusterSync();

  if (warpgroup == kConsumers) {
    ptx::DeallocateRegisters<40>();
    if (threadIdx.x == kConsumers * 128) Produce<kForm>(p, a_map, b_map, shared, block_of_cluster);
  } else {
    ptx::AllocateRegisters<232>();
    Consume<kForm>(p, shared, block_of_cluster, warpgroup);
  }
  // A block must not exit while its partner may still arrive at its barriers.
  ptx::ClusterSync();
#endif
}

template <ProductForm kForm>
void Start(const ProductProblem& problem, Stream stream) {
  static switchyard::cuda::SharedMemoryOptIn setup;
  const ProductShape& s = problem.shape;
  constexpr bool kWeight = kForm == ProductForm::kWeightGradient;
  constexpr bool kForward = kForm == ProductForm::kForward;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(setup.On(device, WgmmaProductKernel<kForm>, sizeof(Shared)),
                          "shared memory of the grouped product");
  const auto rows_of = [&](const ConstArray& array, int64_t columns, int64_t stride) {
    return switchyard::cuda::MakeTensorMap(array.data, s.rows, columns, 2, 64, 64, stride);
  };
  const CUtensorMap a_map =
      kForward ? rows_of(problem.a, s.k, s.ldx) : rows_of(problem.a, s.n, s.ldy);
  const CUtensorMap b_map = kWeight ? rows_of(problem.b, s.k, s.ldx)
                                    : switchyard::cuda::MakeVectorTensorMap(
                                          problem.b.data, s.groups, s.n, s.k, s.group_stride * 2,
                                          s.ldw * 2, 1, kForward ? kBlockN : kBlockK);
  const Arguments p = {.begins = s.begins,
                       .groups = s.groups,
                       .rows = s.rows,
                       .m = s.n,
                       .n = kForward ? s.n : s.k,
                       .inner = kForward ? s.k : s.n,
                       .d = problem.d,
                       .ldd = kWeight    ? s.ldw
                              : kForward ? s.ldy
                                         : s.ldx,
                       .group_stride = kWeight ? s.group_stride : 0,
                       .accumulate = problem.accumulate};
  // Every group adds at most one incomplete row tile.
  const int64_t row_tiles =
      kWeight ? s.groups * CeilDiv(s.n, kBlockM) : CeilDiv(s.rows, kBlockM) + s.groups;
  const int64_t tiles = row_tiles * CeilDiv(p.n, kBlockN * kCluster);
  const int64_t clusters =
      std::min<int64_t>(switchyard::cuda::MultiprocessorCount() / kCluster, tiles);
  Launch("grouped product", WgmmaProductKernel<kForm>, Grid(clusters * kCluster), kThreads,
         sizeof(Shared), stream, p, a_map, b_map);
}

}  // namespace

void StartWgmmaProduct(const ProductProblem& problem, Stream stream) {
  switch (problem.form) {
    case ProductForm::kForward:
      return Start<ProductForm::kForward>(problem, stream);
    case ProductForm::kInputGradient:
      return Start<ProductForm::kInputGradient>(problem, stream);
    case ProductForm::kWeightGradient:
      return Start<ProductForm::kWeightGradient>(problem, stream);
  }
}

}  // namespace switchyard::train::gpu
