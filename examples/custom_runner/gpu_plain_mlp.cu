// One thread computes one element. Each sum runs along K in a fixed order, so the result of a row
// does not depend on other rows.
#include <cuda_bf16.h>

#include "gpu_plain_mlp.h"

namespace {

constexpr int kThreads = 128;
constexpr int kBlockRows = 128;  // of one expert

__device__ float Load(const void* x, bool is_bf16, int64_t i) {
  return is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(x)[i])
                 : static_cast<const float*>(x)[i];
}

// Element `column` of row r's product with the matrix of its expert.
__device__ float Product(const RowProducts& p, int64_t r, int64_t expert, int64_t columns,
                         int64_t column) {
  float sum = 0.0f;
  const int64_t row_of_w = expert * columns + column;
  for (int64_t i = 0; i < p.k; ++i)
    sum =
        fmaf(Load(p.x, p.x_is_bf16, r * p.k + i), Load(p.w, p.w_is_bf16, row_of_w * p.k + i), sum);
  return p.bias ? sum + p.bias[row_of_w] : sum;
}

__global__ void Multiply(const RowProducts p) {
  const int64_t r = blockIdx.y, column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = p.rows.first_row + r;
  const int expert = p.rows.block_experts[row / kBlockRows];
  if (expert < 0 || column >= p.n) return;
  if (row >= p.rows.offsets[expert] + p.rows.counts[expert]) return;  // padding
  float y = 0.0f;
  if (p.silu) {
    const float gate = Product(p, r, expert, 2 * p.n, column);
    y = gate / (1.0f + expf(-gate)) * Product(p, r, expert, 2 * p.n, p.n + column);
  } else {
    y = Product(p, r, expert, p.n, column);
  }
  if (p.y_is_bf16) {
    static_cast<__nv_bfloat16*>(p.y)[r * p.n + column] = __float2bfloat16_rn(y);
  } else {
    static_cast<float*>(p.y)[r * p.n + column] = y;
  }
}

}  // namespace

cudaError_t MultiplyRows(const RowProducts& p, cudaStream_t stream) {
  constexpr int64_t kMostRows =
      32768;  // rows of one launch; a grid's second dimension is at most 65535
  const int64_t x_bytes = p.x_is_bf16 ? 2 : 4, y_bytes = p.y_is_bf16 ? 2 : 4;
  for (int64_t first = 0; first < p.rows.rows; first += kMostRows) {
    RowProducts part = p;
    part.rows.first_row += first;
    part.rows.rows = p.rows.rows - first < kMostRows ? p.rows.rows - first : kMostRows;
    part.x = static_cast<const char*>(p.x) + first * p.k * x_bytes;
    part.y = static_cast<char*>(p.y) + first * p.n * y_bytes;
    const dim3 grid(static_cast<unsigned>((p.n + kThreads - 1) / kThreads),
                    static_cast<unsigned>(part.rows.rows));
    Multiply<<<grid, kThreads, 0, stream>>>(part);
  }
  return cudaGetLastError();
}
