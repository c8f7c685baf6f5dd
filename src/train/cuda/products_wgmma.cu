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

namespace switchyard::train::gpu {
namespace {

namespace ptx = switchyard::cuda::ptx;
using switchyard::cuda::PipelineState;

constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
constexpr int kCluster = 2, kConsumers = 2, kStages = 4;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kUnitBytes = 64 * 128;  // 64 rows of 64 bfloat16

struct Shared {
  alignas(1024) uint8_t a[kStages][kConsumers][kUnitBytes];
  alignas(1024) uint8_t b[kStages][kBlockN / 64 * kUnitBytes];
  alignas(1024) uint8_t d[kConsumers][kUnitBytes];  // staging of 64 columns of D
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  int32_t first_tile[kMaxProductGroups + 1];  // row tiles of the groups before each group
};

// Kernel arguments other than the tensor maps. D [m, n] per group: with ProductForm::kForward and
// kInputGradient, m is the number of rows of the group.
struct Arguments {
  const int32_t* begins;  // null: one group
  int groups;
  int64_t rows;
  int64_t m, n, inner;  // m: weight gradients only; inner: others only
  Array d;
  int64_t ldd, group_stride;
  bool accumulate;
};

// The code for Hopper. In machine code for other GPUs the kernel is empty, and it is not launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kWaveTiles = 16;  // row tiles per wave of tiles, for L2 reuse

__device__ __forceinline__ int64_t BeginOf(const Arguments& p, int group) {
  return p.begins != nullptr ? p.begins[group] : group == 0 ? 0 : p.rows;
}

struct Tile {
  int group;
  int64_t row, row_end;  // of D: in all rows, or of the group's weight
  int64_t column;        // of D
  int64_t inner_begin;   // weight gradients: first row of the group
  int64_t inner;         // length of the inner dimension
};

template <ProductForm kForm>
__device__ __forceinline__ int TileCount(const Arguments& p, const Shared& shared) {
  constexpr int kColumns = kBlockN * kCluster;
  const int pairs = static_cast<int>((p.n + kColumns - 1) / kColumns);
  if constexpr (kForm == ProductForm::kWeightGradient)
    return p.groups * static_cast<int>((p.m + kBlockM - 1) / kBlockM) * pairs;
  return shared.first_tile[p.groups] * pairs;
}

// Tile number `index` of a block of the cluster. Order: waves of kWaveTiles row tiles by all
// columns, so that concurrent reads hit L2. Weight gradients: group by group.
template <ProductForm kForm>
__device__ __forceinline__ Tile TileOf(const Arguments& p, const Shared& shared, int index,
                                       int block_of_cluster) {
  constexpr int kColumns = kBlockN * kCluster;
  const int pairs = static_cast<int>((p.n + kColumns - 1) / kColumns);
  Tile tile;
  if constexpr (kForm == ProductForm::kWeightGradient) {
    const int row_tiles = static_cast<int>((p.m + kBlockM - 1) / kBlockM);
    tile.group = index / (row_tiles * pairs);
    const int in_group = index % (row_tiles * pairs);
    tile.row = int64_t{in_group % row_tiles} * kBlockM;
    tile.row_end = p.m;
    tile.column = int64_t{in_group / row_tiles} * kColumns + block_of_cluster * kBlockN;
    tile.inner_begin = BeginOf(p, tile.group);
    tile.inner = BeginOf(p, tile.group + 1) - tile.inner_begin;
  } else {
    const int first = index / (kWaveTiles * pairs) * kWaveTiles;
    const int height = min(kWaveTiles, shared.first_tile[p.groups] - first);
    const int in_wave = index - first * pairs;
    const int row_tile = first + in_wave % height;
    int low = 0, high = p.groups;  // first_tile[low] <= row_tile < first_tile[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (shared.first_tile[middle] <= row_tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    tile.group = low;
    tile.row = BeginOf(p, low) + int64_t{row_tile - shared.first_tile[low]} * kBlockM;
    tile.row_end = BeginOf(p, low + 1);
    tile.column = int64_t{in_wave / height} * kColumns + block_of_cluster * kBlockN;
    tile.inner_begin = 0;
    tile.inner = p.inner;
  }
  return tile;
}

// Computes first_tile with one warp.
__device__ void CountRowTiles(const Arguments& p, int lane, Shared& shared) {
  int before = 0;
  if (lane == 0) shared.first_tile[0] = 0;
  for (int first = 0; first < p.groups; first += kWarp) {
    const int g = first + lane;
    int tiles = 0;
    if (g < p.groups)
      tiles = static_cast<int>((BeginOf(p, g + 1) - BeginOf(p, g) + kBlockM - 1) / kBlockM);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(~0u, tiles, distance);
      if (lane >= distance) tiles += other;
    }
    if (g < p.groups) shared.first_tile[g + 1] = before + tiles;
    before += __shfl_sync(~0u, tiles, kWarp - 1);
  }
}

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

// Adds four adjacent floats to memory without waiting for the old ones. Each element is added once
// per launch, so the sum does not depend on the order.
__device__ __forceinline__ void AddToMemory(float* to, float4 x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

// Element 4j + i of `sums` is row lane / 4 + 8 (i / 2) of the warp's 16 rows and column
// 8j + 2 (lane % 4) + i % 2. Two neighboring lanes exchange pairs of two adjacent blocks of eight
// columns, so that each has four adjacent columns of one block.
__device__ __forceinline__ void StoreFloats(const Arguments& p, const Tile& tile, int64_t row,
                                            int lane, const float (&sums)[kBlockN / 2]) {
  const bool odd = lane % 2 != 0;
  const int64_t first = tile.column + (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = row + lane / 4 + half * 8;
    float* d = static_cast<float*>(p.d.data) + tile.group * p.group_stride + r * p.ldd + first;
#pragma unroll
    for (int j = 0; j < kBlockN / 8; j += 2) {
      const float* even_block = &sums[4 * j + 2 * half];
      const float* odd_block = even_block + 4;
      const float x = __shfl_xor_sync(~0u, odd ? even_block[0] : odd_block[0], 1);
      const float y = __shfl_xor_sync(~0u, odd ? even_block[1] : odd_block[1], 1);
      if (r >= tile.row_end || first + 8 * j >= p.n) continue;  // n is a multiple of 8
      const float4 four = odd ? make_float4(x, y, odd_block[0], odd_block[1])
                              : make_float4(even_block[0], even_block[1], x, y);
      if (p.accumulate) {
        AddToMemory(d + 8 * j, four);
      } else {
        *reinterpret_cast<float4*>(d + 8 * j) = four;
      }
    }
  }
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

// Stages 64 columns at a time in shared memory, so that lanes store runs of 16 bytes. Each warp
// stages and stores its own 16 rows.
__device__ __forceinline__ void StoreRounded(const Arguments& p, const Tile& tile, int64_t row,
                                             int lane, uint8_t* staging,
                                             const float (&sums)[kBlockN / 2]) {
  const int in_warp = lane % 16;  // row whose address this lane provides
#pragma unroll
  for (int slab = 0; slab < kBlockN / 64; ++slab) {
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < 8; chunk += 2) {
      const float* x = &sums[(slab * 8 + chunk) * 4];
      const int place = (chunk + lane / 16) ^ (in_warp % 8);
      ptx::StoreMatrices(staging + in_warp * 128 + place * 16, PackPair(x[0], x[1]),
                         PackPair(x[2], x[3]), PackPair(x[4], x[5]), PackPair(x[6], x[7]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = i * 4 + lane / 8, piece = lane % 8;
      const int64_t c = tile.column + slab * 64 + piece * 8;
      if (row + r >= tile.row_end || c >= p.n) continue;  // n is a multiple of 8
      const uint4 x = *reinterpret_cast<const uint4*>(staging + r * 128 + (piece ^ (r % 8)) * 16);
      auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.d.data) + (row + r) * p.ldd + c);
      *to = x;
    }
  }
}

template <ProductForm kForm>
__device__ __forceinline__ void Produce(const Arguments& p, const CUtensorMap& a_map,
                                        const CUtensorMap& b_map, Shared& shared,
                                        int block_of_cluster) {
  PipelineState ring;
  const int tiles = TileCount<kForm>(p, shared);
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf<kForm>(p, shared, index, block_of_cluster);
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
  const int tiles = TileCount<kForm>(p, shared);
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf<kForm>(p, shared, index, block_of_cluster);
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
      StoreRounded(p, tile, row, lane, shared.d[warpgroup] + warp * 16 * 128, sums);
    } else {
      StoreFloats(p, tile, row, lane, sums);
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
    CountRowTiles(p, static_cast<int>(threadIdx.x) % kWarp, shared);
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
