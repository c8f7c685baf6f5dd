// Between grouped_gemm.cc, which checks and describes the matrices, and grouped_gemm.cu, which is
// compiled for the device and includes nothing of the rest. Internal to kernels/cuda.
#pragma once

#include <cuda.h>

#include "kernels/cuda/grouped_gemm.h"

namespace switchyard::cuda {

constexpr int kRowBytes = 128;  // of a tile of A or B along K
constexpr int kCluster = 2;     // blocks that share their rows of A
constexpr int kBlockNFp8 = 192, kBlockNBf16 = 256;

struct GroupedGemmLaunch {
  GroupedGemmParams params;
  bool fp8 = false;
  CUtensorMap a_map, b_map, d_map;
};
cudaError_t StartGroupedGemm(const GroupedGemmLaunch& launch, cudaStream_t stream);

}  // namespace switchyard::cuda
