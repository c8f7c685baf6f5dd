// Vectorized kernels of training that each instruction set implements, in addition to those of
// src/kernels. Each is single-threaded and does not allocate. The rules of
// kernels/cpu/kernel_table.h apply to these files too.
#pragma once

#include <cstdint>

namespace switchyard::train {

// Vectorized kernels of training that each instruction set implements, in addition to those of
// src/kernels. Each is single-threaded and does not allocate. The rules of
// kernels/cpu/kernel_table.h apply to these files too.

// C[m, n] (+)= A · B with contiguous rows of B; see Product.
struct ProductTask {
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t ldc;
  int64_t m, n, k;
  bool accumulate;
};

constexpr int64_t kPanel = 64;  // columns of B in a packed panel
// Two cache lines, so that no two threads write to the same line.
constexpr int64_t kFewColumns = 32;

struct KernelTable {
  void (*multiply)(const ProductTask&);
  // out[i · kPanel + j] = in[i · ldi + j] for i in [0, rows), j in [0, columns), then zero padding.
  void (*pack)(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out);
  // out[j · ldo + i] = in[i · ldi + j] for i in [0, rows), j in [0, columns)
  void (*transpose)(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
                    int64_t ldo);
  float (*largest)(const float* x, int64_t n);
  float (*dot)(const float* a, const float* b, int64_t n);
  // out[i · ldo + j] = in[i · ldi + j]
  void (*copy_rows)(const float* in, int64_t ldi, int64_t rows, int64_t columns, float* out,
                    int64_t ldo);
  // x[i] *= factor
  void (*scale)(float* x, int64_t n, float factor);
  // s[i] = e^(scale · s[i] - shift), then d[i] = s[i] · (d[i] - delta) · scale with the new s[i].
  // `delta`: the sum of s · d over the row (FlashAttention 2).
  void (*softmax_gradient)(float* s, float* d, int64_t n, float scale, float shift, float delta);
  // x[i] = e^(scale · x[i] - shift); returns the sum, accumulated in vector lanes.
  float (*exp_sum)(float* x, int64_t n, float scale, float shift);
  // y = x · root · weight; see RmsNorm
  void (*norm)(const float* x, float root, const float* weight, float* y, int64_t n);
  // dx (+)= dy · weight · root - x · back
  void (*norm_gradient)(const float* x, float root, const float* weight, const float* dy,
                        float back, bool accumulate, float* dx, int64_t n);
  // sum[j] += a[i · lda + j] · b[i · ldb + j] · factors[i] for i in [0, rows), in order, and j in
  // [0, n), n at most kFewColumns: the sums stay in registers.
  void (*add_columns)(const float* a, int64_t lda, const float* b, int64_t ldb,
                      const float* factors, int64_t rows, int64_t n, float* sum);
  // y += x · factor
  void (*add_scaled)(const float* x, float factor, float* y, int64_t n);
  // Rotates pairs (x[i], x[i + 1]) in place: x = x · cosines + y · sines, where y is the other
  // element of the pair; n is a multiple of 8.
  void (*rotate_pairs)(float* x, const float* cosines, const float* sines, int64_t n);
  // out = silu(gate) · up
  void (*swiglu)(const float* gate, const float* up, float* out, int64_t n);
  // Gradient of swiglu, with dout the gradient of out; dgate and dup may alias gate and up.
  // Recomputes `out` unless it is null.
  void (*swiglu_gradient)(const float* gate, const float* up, const float* dout, float* dgate,
                          float* dup, float* out, int64_t n);
};

namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}

// The kernels of kernels::ActiveIsa(); null for the reference implementation.
const KernelTable* ActiveKernels();

// AVX512_BF16 kernels for bfloat16 products. Each is single-threaded and does not allocate.

// A pair is two bfloat16 numbers in the bits of a float, the first one in the upper half. The float
// type is only storage.
struct PairKernels {
  // Like KernelTable::multiply, with A [m, k] and B [k, n] of pairs.
  void (*multiply)(const ProductTask&);
  // For each of n rows of d elements with stride `row`: out[q] = (in[2 q], in[2 q + 1]), q in
  // [0, (d + 1) / 2). An unpaired last element is paired with zero. A row may be rounded in place.
  void (*round_rows)(const float* in, int64_t row, int64_t n, int64_t d, float* out,
                     int64_t out_row);
  // For each pair of consecutive rows, of n rows of d elements: out[j] = (first[j], second[j]) for
  // j in [0, d), zero-padded to a multiple of kPanel. An unpaired last row is paired with zeros.
  void (*pair_rows)(const float* in, int64_t row, int64_t n, int64_t d, float* out,
                    int64_t out_row);
};

namespace avx512 {
extern const PairKernels kPairKernels;
}

}  // namespace switchyard::train
