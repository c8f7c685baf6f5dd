// Quantization of GEMM input rows, with the same bits as quant/activations.h and quant/fp8.h.
// Internal to kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/ops.h"
#include "quant/formats.h"

namespace switchyard::cuda::ops {

// The MLP activation as a kernel argument. Internal to kernels/cuda.

struct ActivationArg {
  kernels::Activation kind = kernels::Activation::kSwiGlu;
  float alpha = 0, limit = 0;
};

// Rows x, or act(x, up) if `up` is not null. kRelu2 reads `up` only, and x may be the same rows.
struct RowSource {
  const float* x = nullptr;   // [m, k], row stride ldx
  const float* up = nullptr;  // [m, k], row stride ldx
  int64_t ldx = 0;
  int64_t m = 0, k = 0;
  ActivationArg act;
};
struct Rounding {
  ActivationFormat format = ActivationFormat::kNone;
  float input_scale = 1.0f;  // for kFp8Tensor
};
// RoundActivations on every row; out [m, k] must not be x.
cudaError_t RoundRows(const RowSource& rows, const Rounding& rounding, float* out,
                      cudaStream_t stream);
// RoundActivations on every row, then rounding to bfloat16.
cudaError_t RoundRowsToBf16(const RowSource& rows, const Rounding& rounding, void* out,
                            const PdlStream& chain);
// QuantizeFp8Groups on every row: codes [m, k], scales [k / 128, scale_stride] with row r's scales
// in column r. k is a multiple of 128.
cudaError_t QuantizeRows(const RowSource& rows, uint8_t* codes, float* scales, int64_t scale_stride,
                         const PdlStream& chain);

}  // namespace switchyard::cuda::ops
