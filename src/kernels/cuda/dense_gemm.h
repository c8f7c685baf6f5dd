// Dense GEMM of activations and one weight with Hopper's wgmma.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_chain.h"

namespace switchyard::cuda {

// y[m, n] = x[m, k] · W[n, k]ᵀ (+ bias[n]) (+ y). All matrices are row-major; x and W are bfloat16,
// or both e4m3 with scales. The shape selects the kernel (gemm_heuristics.h). A row's bits do not
// depend on m and equal those of GroupedGemmBf16 or GroupedGemmFp8: sums run along K in one order.
// Nothing is allocated and nothing waits for the host.
struct DenseGemmParams {
  const void* x = nullptr;  // [m, k], aligned to 16 bytes
  int64_t ldx = 0;          // elements; 0: k. Rows are aligned to 16 bytes
  // e4m3 only: float32 scales of x, element (row, i / 128) at x_scales[i / 128 · ld_x_scales +
  // row].
  const float* x_scales = nullptr;
  int64_t ld_x_scales = 0;  // floats, a multiple of 4; 0: m
  const void* w = nullptr;  // [n, k], aligned to 16 bytes
  // e4m3 only: float32 scales of W [ceil(n / 128), k / 128].
  const float* w_scales = nullptr;
  const float* bias = nullptr;  // [n] or null
  void* y = nullptr;            // [m, n], float32 or bfloat16
  int64_t ldy = 0;              // elements; 0: n. bfloat16: a multiple of 8, y aligned to 16 bytes
  bool float_output = true;     // y is float32, else bfloat16
  bool accumulate = false;      // float32 only: adds to y
  int64_t m = 0;
  int64_t n = 0;  // bfloat16 output: a multiple of 8
  int64_t k = 0;  // bfloat16: a multiple of 8; e4m3: of 128
};

// Whether DenseGemm supports these sizes and addresses (on any Hopper GPU).
bool DenseGemmTakes(const DenseGemmParams& p);
// Enqueues the kernel and returns. Error kInvalid on an unsupported shape or alignment. In a chain
// with early launch, W is read before the previous kernel has ended, so that kernel must not write
// W.
void DenseGemm(const DenseGemmParams& p, const PdlStream& chain);

}  // namespace switchyard::cuda
