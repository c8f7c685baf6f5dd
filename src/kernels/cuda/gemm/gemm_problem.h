// Internal GEMM interface. The entry points (gemm.h, w4a16_gemm.h) validate. gemm.cc
// selects a kernel and makes the tensor maps. The kernels (gemm_many_rows.cu, gemm_few_rows.cu) do
// not include the headers of the entry points. Internal to kernels/cuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"

namespace switchyard::cuda {

// Selection of the GEMM kernel and tile size. It affects time only: both kernels accumulate along K
// in the same order.

struct GemmPlan {
  // True: swapped operands. Weights are wgmma's 64-row side (M), tokens its N side of 16 to 192, so
  // padding of token rows costs no computation. False: tokens are the 64-row side, 128 per block.
  bool few_rows = false;
  int weight_rows = 0;  // per block tile: 16, 32, 64 or 128; many rows: 192 (FP8) or 256
  int cluster = 1;      // blocks that share rows of A by multicast: 1 or 2
  // 128-byte steps along K per stage, 1 or 4. For 4 steps, m and weight_rows are at most 64, K ·
  // element size is a multiple of 128, and there is no cluster.
  int steps = 1;

  bool operator==(const GemmPlan&) const = default;
};

// Tile sizes that the kernels are compiled for.
constexpr int kManyRowsTokens = 128;
constexpr int kManyRowsWeightsFp8 = 192, kManyRowsWeightsBf16 = 256;
constexpr int kFewRowsMaxTokens = 192;
constexpr int kFourStepsMaxTokens = 64, kFourStepsMaxWeights = 64;
// wgmma's N for m rows in the few-rows kernel: 16, 32, 64, 96, … 192.
int TileTokens(int64_t m);

GemmPlan PlanManyRows(bool fp8);
// Selects a plan for groups whose row counts are on the device, for a GPU with `processors` SMs.
GemmPlan PlanFewRows(int64_t groups, int64_t n, int processors);
// Selects a plan for one group of m rows.
GemmPlan PlanDenseGemm(bool fp8, int64_t m, int64_t n, int64_t k, int processors);

// D[r, :] = A[r, :] · B[g(r)]ᵀ (+ bias[g(r)]) (+ D). Fields are those of GroupedGemmParams, with
// strides. Without block_groups and group_rows all rows are in group 0.
struct GemmProblem {
  bool fp8 = false;
  const void* a = nullptr;  // [rows, k], stride lda elements
  int64_t lda = 0;
  const float* a_scales = nullptr;  // [k / 128, rows], stride ld_a_scales
  int64_t ld_a_scales = 0;
  const void* b = nullptr;          // [groups, n, k]
  const float* b_scales = nullptr;  // [groups, ceil(n / 128), k / 128]
  const float* bias = nullptr;      // [groups, n] or null
  void* d = nullptr;                // [rows, n], stride ldd
  int64_t ldd = 0;
  bool float_output = false;
  bool accumulate = false;  // with float_output only
  const int32_t* block_groups = nullptr;
  const int32_t* group_begins = nullptr;
  const int32_t* group_rows = nullptr;
  bool groups_ready = false;
  int64_t rows = 0, n = 0, k = 0;
  int groups = 1;
};

// Tiles in shared memory have rows of 128 bytes along K, as wgmma reads them.
constexpr int kGemmRowBytes = 128;

struct CurrentGpu {
  int index = 0, processors = 0;
};
CurrentGpu FindCurrentGpu();

// Both kernels load tiles of A and B by tensor maps; elements outside of the matrices read as zero.
struct GemmLaunch {
  GemmProblem problem;
  GemmPlan plan;
  CurrentGpu gpu;
  CUtensorMap a_map;        // boxes of 64 rows; with several steps: of all rows
  CUtensorMap a_small_map;  // few rows: boxes of 16
  CUtensorMap b_map;        // boxes of plan.weight_rows
  CUtensorMap scales_map;   // FP8: A's scales, boxes of plan.steps × 64; many rows: 1 × 128
  CUtensorMap d_map;        // many rows, bfloat16: boxes of 64 × 64
};

// `plan` must support `problem`. Error kResource if the launch fails.
void LaunchGemm(const GemmProblem& problem, const GemmPlan& plan, const CurrentGpu& gpu,
                const PdlStream& chain);

cudaError_t StartManyRowsGemm(const GemmLaunch& launch, cudaStream_t stream);
// Uses programmatic dependent launch: if the group sizes are known, weights are fetched before the
// previous kernel has ended.
cudaError_t StartFewRowsGemm(const GemmLaunch& launch, const PdlStream& chain);

// Launch interface between gemm.cc, which validates and makes the tensor maps, and the
// kernels of each format. Internal to kernels/cuda.

struct W4A16Launch {
  W4A16GemmParams params;
  GemmPlan plan;  // few_rows, one step
  CurrentGpu gpu;
  CUtensorMap a_maps[3];  // boxes of 64, 32 and 16 rows
};

// Each launches the kernel of one format. All values of W4A16Format::scales that the format allows
// are supported.
cudaError_t StartW4A16Mxfp4(const W4A16Launch& launch, const PdlStream& chain);
cudaError_t StartW4A16Nvfp4(const W4A16Launch& launch, const PdlStream& chain);
cudaError_t StartW4A16Int4(const W4A16Launch& launch, const PdlStream& chain);

}  // namespace switchyard::cuda
