// Internal GEMM interface. The entry points (grouped_gemm.h, dense_gemm.h) validate. gemm_run.cc
// selects a kernel and makes the tensor maps. The kernels (gemm_many_rows.cu, gemm_few_rows.cu) do
// not include the headers of the entry points. Internal to kernels/cuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/gemm_heuristics.h"
#include "kernels/cuda/stream_chain.h"

namespace switchyard::cuda {

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

}  // namespace switchyard::cuda
