// Kernels of the runner for GPUs. They include no header of Switchyard, which keeps the nvcc
// compilation short.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Rows grouped by expert: expert e has the rows [offsets[e], offsets[e] + counts[e]). A launch
// computes the rows from first_row on. block_experts: the expert of each block of 128 rows, −1 for
// none.
struct ExpertRowsOnGpu {
  const int32_t* offsets = nullptr;
  const int32_t* counts = nullptr;
  const int32_t* block_experts = nullptr;
  int64_t first_row = 0, rows = 0;
};

// y[r] = x[r] · W[e(r)]ᵀ + bias[e(r)] for each valid row. Elements are float or bfloat16, as the
// flags state. `silu`: W has 2 n rows per expert, and y = silu(first half) · second half.
struct RowProducts {
  ExpertRowsOnGpu rows;
  const void* x = nullptr;      // [rows, k]
  const void* w = nullptr;      // [experts, n or 2 n, k]
  const float* bias = nullptr;  // [experts, n or 2 n] or null
  void* y = nullptr;            // [rows, n]
  int64_t n = 0, k = 0;
  bool x_is_bf16 = false, w_is_bf16 = false, y_is_bf16 = false;
  bool silu = false;
};
cudaError_t MultiplyRows(const RowProducts& p, cudaStream_t stream);
