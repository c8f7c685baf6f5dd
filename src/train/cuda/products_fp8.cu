// Grouped FP8 products of training on Hopper, with scales and float32 sums: outputs and input
// gradients (weights with scales of 128 × 128), and weight gradients (both operands with scales of
// 1 × 128 along the rows of a group). Groups have any number of rows, as in products_wgmma.cu.
//
// Tiling: 128 × 192 of D as in kernels/cuda/gemm/gemm_many_rows.cu, with its main loop; weight
// gradients 128 × 128, because each sum has a scale of its own. Clusters of two blocks share A.
// Pipeline: 128 inner elements per stage, four or six stages; two consumer warpgroups and a
// producer.
// wgmma reads FP8 operands along the inner dimension only. So input gradients read transposed
// weights, and weight gradients read transposed rows (fp8.h).
// Source: DeepGEMM's description (kernels/cuda/gemm/gemm.h).
#include <algorithm>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_scaled.cuh"
#include "train/cuda/fp8.h"
#include "train/cuda/launch.cuh"
#include "train/cuda/products_problem.h"
#include "train/cuda/products_tiles.cuh"
#include "train/cuda/refuse.h"

namespace switchyard::train::gpu {
namespace {

using namespace products;  // NOLINT(google-build-using-namespace): this file is a part of it
using switchyard::cuda::kGemmRowBytes;
using switchyard::cuda::kStageCluster;
using switchyard::cuda::PipelineState;
using switchyard::cuda::StageReader;

constexpr int kBlockK = static_cast<int>(kScaleBlock);
static_assert(kBlockK == kGemmRowBytes && kCluster == kStageCluster);

// kForward: also input gradients.
template <ProductForm kForm>
struct Fp8Shared {
  static constexpr bool kWeight = kForm == ProductForm::kWeightGradient;
  static constexpr int kBlockN = kWeight ? 128 : 192, kStages = kWeight ? 6 : 4;
  alignas(1024) uint8_t a[kStages][kBlockM * kBlockK];
  alignas(1024) uint8_t b[kStages][kBlockN * kBlockK];
  alignas(1024) uint8_t d[kConsumers][kWeight ? 16 : 64 * 128];  // staging of 64 columns of D
  // A TMA box of float32 begins at a multiple of 16 bytes, so rows of a group may begin with the
  // second, third or fourth scale of a box.
  static constexpr int kScaleRows = kWeight ? kBlockM : kBlockM + 4;
  alignas(128) float a_scales[kStages][(kScaleRows + 31) / 32 * 32];
  alignas(128) float b_scales[kStages][kWeight ? kBlockN : 32];  // weight gradients only
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  int32_t first_tile[kMaxProductGroups + 1];  // row tiles of the groups before each group

  static constexpr uint32_t kStageBytes = sizeof(a[0]) + sizeof(b[0]) + kScaleRows * sizeof(float) +
                                          (kWeight ? sizeof(b_scales[0]) : 0);
};

// Kernel arguments other than the tensor maps. The first row of padded rows of group g is
// 128 · first_tile[g].
struct Fp8Arguments : Arguments {
  const float* b_scales;  // of the weights; not for weight gradients
  int k_blocks;           // steps along the inner dimension; not for weight gradients
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <ProductForm kForm>
__device__ __forceinline__ void Produce(const Fp8Arguments& p, const CUtensorMap& a_map,
                                        const CUtensorMap& b_map, const CUtensorMap& a_scales_map,
                                        const CUtensorMap& b_scales_map, Fp8Shared<kForm>& shared,
                                        int block_of_cluster) {
  using Memory = Fp8Shared<kForm>;
  constexpr int kPart = kBlockM / kCluster;
  PipelineState ring;
  const int tiles = TileCount<kForm, Memory::kBlockN>(p, shared.first_tile);
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf<kForm, Memory::kBlockN>(p, shared.first_tile, index, block_of_cluster);
    const int row = static_cast<int>(tile.row), column = static_cast<int>(tile.column);
    const int first = Memory::kWeight ? shared.first_tile[tile.group] : 0;
    const int end = Memory::kWeight ? shared.first_tile[tile.group + 1] : p.k_blocks;
    const int b_row = Memory::kWeight ? column : tile.group * static_cast<int>(p.n) + column;
    for (int step = first; step < end; ++step, ring.Next(Memory::kStages)) {
      const int s = ring.stage;
      ptx::BarrierWait(&shared.empty[s], ring.parity ^ 1);
      ptx::BarrierExpect(&shared.full[s], Memory::kStageBytes);
      // Each block of the cluster loads half of the rows and multicasts them to both blocks.
      ptx::LoadBoxMulticast(shared.a[s] + block_of_cluster * kPart * kBlockK, &a_map,
                            step * kBlockK, row + block_of_cluster * kPart, &shared.full[s],
                            (1 << kCluster) - 1);
      ptx::LoadBox(shared.b[s], &b_map, step * kBlockK, b_row, &shared.full[s]);
      ptx::LoadBox(shared.a_scales[s], &a_scales_map, row / 4 * 4, step, &shared.full[s]);
      if constexpr (Memory::kWeight)
        ptx::LoadBox(shared.b_scales[s], &b_scales_map, column, step, &shared.full[s]);
    }
  }
}

// Main loop of a tile of a weight gradient, as MultiplyScaled, but with a scale for each column.
template <typename Shared>
__device__ __forceinline__ void MultiplyColumnScaled(Shared& shared, PipelineState& ring, int steps,
                                                     int warpgroup, int thread,
                                                     float (&sums)[Shared::kBlockN / 2]) {
  const int lane = thread % kWarp, row = warpgroup * 64 + thread / kWarp * 16 + lane / 4;
  const StageReader<Shared> reader(shared, warpgroup);
  const ptx::SharedAddr a_scales = ptx::Pinned(&shared.a_scales[0][row]);
  float part[Shared::kBlockN / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  bool ready = false;  // whether the next stage is known to be full
  for (int step = 0; step < steps; ++step) {
    const int s = ring.stage;
    if (!ready) ptx::BarrierWait(reader.Full(ring), ring.parity);
    const float a0 = ptx::LoadFloat(a_scales.After(s * sizeof(shared.a_scales[0])));
    const float a1 = ptx::LoadFloat(a_scales.After(s * sizeof(shared.a_scales[0]) + 32));
    reader.template Start<true>(s, false, part);
    // Column 8j + 2 (lane % 4) and the next one.
    float2 b[Shared::kBlockN / 8];
#pragma unroll
    for (int j = 0; j < Shared::kBlockN / 8; ++j)
      b[j] = *reinterpret_cast<const float2*>(&shared.b_scales[s][8 * j + 2 * (lane % 4)]);
    ring.Next(Shared::kStages);
    ptx::WgmmaWait<0>();
    reader.Release(s);
    ready = ptx::BarrierTestWait(reader.Full(ring), ring.parity);
    ptx::PinRegisters(part);
#pragma unroll
    for (int j = 0; j < Shared::kBlockN / 8; ++j) {
      sums[4 * j] = __fmaf_rn(a0 * b[j].x, part[4 * j], sums[4 * j]);
      sums[4 * j + 1] = __fmaf_rn(a0 * b[j].y, part[4 * j + 1], sums[4 * j + 1]);
      sums[4 * j + 2] = __fmaf_rn(a1 * b[j].x, part[4 * j + 2], sums[4 * j + 2]);
      sums[4 * j + 3] = __fmaf_rn(a1 * b[j].y, part[4 * j + 3], sums[4 * j + 3]);
    }
  }
}

template <ProductForm kForm>
__device__ __forceinline__ void Consume(const Fp8Arguments& p, Fp8Shared<kForm>& shared,
                                        int block_of_cluster, int warpgroup) {
  using Memory = Fp8Shared<kForm>;
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % kWarp;
  const int warp = thread / kWarp;
  PipelineState ring;
  float sums[Memory::kBlockN / 2];
  const int tiles = TileCount<kForm, Memory::kBlockN>(p, shared.first_tile);
  for (int index = blockIdx.x / kCluster; index < tiles; index += gridDim.x / kCluster) {
    const Tile tile = TileOf<kForm, Memory::kBlockN>(p, shared.first_tile, index, block_of_cluster);
    const int64_t row = tile.row + warpgroup * 64 + warp * 16;
    if constexpr (Memory::kWeight) {
      const int steps = shared.first_tile[tile.group + 1] - shared.first_tile[tile.group];
      if (steps == 0) continue;  // adds nothing
      MultiplyColumnScaled(shared, ring, steps, warpgroup, thread, sums);
      StoreFloats<Memory::kBlockN>(p, tile, row, lane, sums);
    } else {
      switchyard::cuda::MultiplyScaled(p, shared, ring, tile.group, static_cast<int>(tile.column),
                                       warpgroup, thread, sums, static_cast<int>(tile.row % 4));
      if (p.d.bf16) {
        StoreRounded<Memory::kBlockN>(p, tile, row, lane, shared.d[warpgroup] + warp * 16 * 128,
                                      sums);
      } else {
        StoreFloats<Memory::kBlockN>(p, tile, row, lane, sums);
      }
    }
  }
}

#endif

template <ProductForm kForm>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCluster, 1, 1)
    Fp8ProductKernel(const __grid_constant__ Fp8Arguments p,
                     const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap a_scales_map,
                     const __grid_constant__ CUtensorMap b_scales_map) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Fp8Shared<kForm>*>(memory);
  const int block_of_cluster = static_cast<int>(ptx::BlockOfCluster());
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Fp8Shared<kForm>::kStages; ++s) {
      ptx::BarrierInit(&shared.full[s], 1);
      ptx::BarrierInit(&shared.empty[s], kConsumers * 4 * kCluster * ptx::kWarpArrivals);
    }
    ptx::FenceBarrierInit();
    ptx::PrefetchTensorMap(&a_map);
    ptx::PrefetchTensorMap(&b_map);
    ptx::PrefetchTensorMap(&a_scales_map);
    if (Fp8Shared<kForm>::kWeight) ptx::PrefetchTensorMap(&b_scales_map);
  }
  if (warpgroup == 1 && threadIdx.x % 128 < kWarp)
    CountRowTiles(p, static_cast<int>(threadIdx.x) % kWarp, shared.first_tile);
  ptx::ClusterSync();

  if (warpgroup == kConsumers) {
    ptx::DeallocateRegisters<40>();
    if (threadIdx.x == kConsumers * 128)
      Produce<kForm>(p, a_map, b_map, a_scales_map, b_scales_map, shared, block_of_cluster);
  } else {
    ptx::AllocateRegisters<232>();
    Consume<kForm>(p, shared, block_of_cluster, warpgroup);
  }
  // A block must not exit while its partner may still arrive at its barriers.
  ptx::ClusterSync();
#endif
}

template <ProductForm kForm>
void Start(const Fp8Arguments& p, int64_t row_tiles, const CUtensorMap& a_map,
           const CUtensorMap& b_map, const CUtensorMap& a_scales_map,
           const CUtensorMap& b_scales_map, Stream stream) {
  static switchyard::cuda::SharedMemoryOptIn setup;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(setup.On(device, Fp8ProductKernel<kForm>, sizeof(Fp8Shared<kForm>)),
                          "shared memory of the FP8 product");
  const int64_t tiles = row_tiles * CeilDiv(p.n, Fp8Shared<kForm>::kBlockN * kCluster);
  const int64_t clusters =
      std::min<int64_t>(switchyard::cuda::MultiprocessorCount() / kCluster, tiles);
  Launch("FP8 product", Fp8ProductKernel<kForm>, Grid(clusters * kCluster), kThreads,
         sizeof(Fp8Shared<kForm>), stream, p, a_map, b_map, a_scales_map, b_scales_map);
}

void CheckShape(const ProductShape& s) {
  if (!switchyard::cuda::IsHopper()) Refuse("FP8 products need a Hopper GPU (sm_{})", {90});
  if (s.groups < 1 || s.groups > kMaxProductGroups)
    Refuse("FP8 product with {} groups, want 1 to {}", {s.groups, kMaxProductGroups});
  if (s.begins == nullptr && s.groups > 1)
    Refuse("FP8 product with {} groups and no row ranges", {s.groups});
  if (s.rows < 0 || s.n < 1 || s.k < 1 || s.n % kScaleBlock != 0 || s.k % kScaleBlock != 0)
    Refuse("FP8 product of {} rows, {} outputs and {} inputs: want multiples of {}",
           {s.rows, s.n, s.k, kScaleBlock});
  if (s.ldx != 0 || s.ldy != 0 || s.ldw != 0 || s.group_stride != 0)
    Refuse("FP8 product with a stride of {}: want dense arrays",
           {std::max({s.ldx, s.ldy, s.ldw, s.group_stride})});
}

}  // namespace

void Fp8Product(const ProductShape& s, const Fp8Operand& x, const Fp8Operand& w, Array y,
                bool accumulate, Stream stream) {
  CheckShape(s);
  if (y.bf16 && accumulate) Refuse("FP8 product that adds to {} bfloat16 rows", {s.rows});
  if (s.rows == 0) return;
  using switchyard::cuda::MakeTensorMap;
  constexpr ProductForm kForm = ProductForm::kForward;
  Fp8Arguments p;
  p.begins = s.begins;
  p.groups = s.groups;
  p.rows = s.rows;
  p.m = 0;
  p.n = s.n;
  p.inner = s.k;
  p.d = y;
  p.ldd = s.n;
  p.group_stride = 0;
  p.accumulate = accumulate;
  p.b_scales = w.scales;
  p.k_blocks = static_cast<int>(s.k / kScaleBlock);
  const CUtensorMap a_map = MakeTensorMap(x.codes, s.rows, s.k, 1, kBlockM / kCluster, kBlockK),
                    b_map = MakeTensorMap(w.codes, s.groups * s.n, s.k, 1,
                                          Fp8Shared<kForm>::kBlockN, kBlockK),
                    scales_map = MakeTensorMap(x.scales, s.k / kScaleBlock, s.rows, 4, 1,
                                               Fp8Shared<kForm>::kScaleRows, Fp8RowStride(s.rows));
  // Every group adds at most one incomplete row tile.
  Start<kForm>(p, CeilDiv(s.rows, kBlockM) + s.groups, a_map, b_map, scales_map, scales_map,
               stream);
}

void Fp8WeightGradient(const ProductShape& s, const Fp8Operand& dy, const Fp8Operand& x, float* dw,
                       Stream stream) {
  CheckShape(s);
  if (s.rows == 0) return;
  using switchyard::cuda::MakeTensorMap;
  constexpr ProductForm kForm = ProductForm::kWeightGradient;
  Fp8Arguments p;
  p.begins = s.begins;
  p.groups = s.groups;
  p.rows = s.rows;
  p.m = s.n;
  p.n = s.k;
  p.inner = 0;
  p.d = dw;
  p.ldd = s.k;
  p.group_stride = s.n * s.k;
  p.accumulate = true;
  p.b_scales = nullptr;
  p.k_blocks = 0;
  const int64_t padded = Fp8PaddedRows(s.rows, s.groups), blocks = padded / kScaleBlock;
  const CUtensorMap a_map = MakeTensorMap(dy.codes, s.n, padded, 1, kBlockM / kCluster, kBlockK),
                    b_map =
                        MakeTensorMap(x.codes, s.k, padded, 1, Fp8Shared<kForm>::kBlockN, kBlockK),
                    a_scales_map = MakeTensorMap(dy.scales, blocks, s.n, 4, 1, kBlockM),
                    b_scales_map =
                        MakeTensorMap(x.scales, blocks, s.k, 4, 1, Fp8Shared<kForm>::kBlockN);
  Start<kForm>(p, s.groups * CeilDiv(s.n, kBlockM), a_map, b_map, a_scales_map, b_scales_map,
               stream);
}

}  // namespace switchyard::train::gpu
