// Launch interface between w4a16_gemm.cc, which validates and makes the tensor maps, and the
// kernels of each format. Internal to kernels/cuda.
#pragma once

#include <cuda.h>

#include "kernels/cuda/gemm_problem.h"
#include "kernels/cuda/w4a16_gemm.h"

namespace switchyard::cuda {

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
