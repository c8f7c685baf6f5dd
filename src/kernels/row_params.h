// Params of small row ops that are in kernels/device.h but not in kernels/ops.h. Unlike
// kernels/ops.h, this header contains only what device compilers can parse.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// Row gather: y[i, 0..n) = x[row(i), 0..n), row strides `ldx` and `ldy` floats; row(i) = rows[i],
// or i if `rows` is null.
struct CopyRowsParams {
  const float* x = nullptr;
  int64_t ldx = 0;
  const int32_t* rows = nullptr;  // [m] or null
  float* y = nullptr;
  int64_t ldy = 0;
  int64_t m = 0, n = 0;
};

// squares[t] = Σ_i x[t, i]²
struct SumSquaresParams {
  const float* x = nullptr;  // [m, n]
  int64_t m = 0, n = 0;
  float* squares = nullptr;  // [m]
};

// x[t, i] = x[t, i] / sqrt(squares[t] / total + eps) · weight[i]: RMS norm with the mean over
// `total` elements, of which this rank holds n.
struct ScaleBySquaresParams {
  float* x = nullptr;  // [m, n]
  int64_t m = 0, n = 0;
  const float* squares = nullptr;  // [m]
  int64_t total = 0;
  float eps = 1e-6f;
  const float* weight = nullptr;  // [n]
};

}  // namespace switchyard::kernels
