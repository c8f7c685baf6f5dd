// Grouped GEMM in plain float32 arithmetic, for exact mode and GPUs before Hopper.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moe/cuda/permute/expert_rows.h"

namespace switchyard::cuda {

// d[r] = a[r] · b[expert of r]ᵀ + bias[expert of r]. Each element is one sum of float32 fused
// multiply-adds in the order of K. It does not depend on other rows of the call.
struct PlainGemmParams {
  const void* a = nullptr;  // [chunk rows, k]
  const void* b = nullptr;  // [experts, n, k]
  void* d = nullptr;        // [chunk rows, n]
  ElementType a_type = ElementType::kF32, b_type = ElementType::kF32,
              d_type = ElementType::kF32;  // not kFp8
  const float* bias = nullptr;             // [experts, n] or null
  int64_t n = 0, k = 0;
  RowChunk chunk;
};
cudaError_t PlainGroupedGemm(const PlainGemmParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
