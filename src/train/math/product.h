// Matrix products of training, and the format of their operands.
#pragma once

#include <cstdint>
#include <span>

#include "core/parallel.h"

namespace switchyard::train {

// Operand format of the matrix products of training.

// The type of the operands of float products; accumulation is in float32 for all values. Products
// of double (gradient checks) use float64 throughout and support only kFloat32.
enum class ProductDtype : uint8_t {
  kFloat32,
  kBFloat16,  // operands are rounded to the nearest bfloat16, ties to even; see bf16_product.h
  // e4m3 with scales (LinearShape::fp8 of train/device), of the linear layers of attention and
  // feed-forward layers; all other operands are bfloat16. On devices only: Multiply rejects it.
  kFp8,
};

// Matrix products (GEMM) in float32 and float64, in the three forms of a linear layer: forward
// x · Wᵀ, input gradient dy · W, weight gradient dyᵀ · x.
//
// Every element is one chain of multiply-adds along the inner dimension, in ascending order,
// starting from the previous value of C if `accumulate` is set, else from zero. So the result
// depends neither on the number of threads nor on the number of rows.
//
// The products of src/kernels are for inference. They read weights of any format in place, once,
// and reduce across vector lanes at the end of a row. In training, weights are float32, there are
// many rows, and inner dimensions may be short (the experts of small models). So here B is
// transposed once for all rows and lanes are not reduced. This is twice as fast at the shapes of
// bench/train.

// C[m, n] (+)= A[m, k] · B[k, n]; A and B may be stored transposed. C must not overlap A or B.
template <typename T>
struct Product {
  const T* a = nullptr;  // A(i, p) at a[i · a_row + p · a_col]
  int64_t a_row = 0, a_col = 1;
  const T* b = nullptr;  // B(p, j) at b[p · b_row + j · b_col]; b_row or b_col is 1
  int64_t b_row = 0, b_col = 1;
  T* c = nullptr;  // C(i, j) at c[i · ldc + j]
  int64_t ldc = 0;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  T scale = 1;  // factor of A · B. Must be 1 if accumulate is set.
  ProductDtype dtype = ProductDtype::kFloat32;
};

// Computes all products, of one dtype, in parallel. Threads share the tiles of all products, so
// experts with few rows each keep all threads busy. No product may write what another reads or
// writes.
template <typename T>
void Multiply(std::span<const Product<T>> products, ThreadPool& pool);
// Multiplies in float32 or float64 on the calling thread, without the pool. Use it within tasks.
template <typename T>
void MultiplySerial(const Product<T>& product);

// y[m, n] = x[m, k] · W[n, k]ᵀ, all dense.
template <typename T>
struct Projection {
  const T* x = nullptr;
  const T* w = nullptr;
  T* y = nullptr;
  int64_t m = 0, n = 0, k = 0;
  ProductDtype dtype = ProductDtype::kFloat32;  // must be equal for all parts of a call
};
template <typename T>
void Project(std::span<const Projection<T>> parts, ThreadPool& pool);

// dx[m, k] (+)= dy[m, n] · W[n, k]
template <typename T>
Product<T> InputGradient(const T* dy, const T* w, T* dx, int64_t m, int64_t n, int64_t k,
                         bool accumulate) {
  return {.a = dy,
          .a_row = n,
          .b = w,
          .b_row = k,
          .c = dx,
          .ldc = k,
          .m = m,
          .n = k,
          .k = n,
          .accumulate = accumulate};
}
// dW[n, k] += dy[m, n]ᵀ · x[m, k]
template <typename T>
Product<T> WeightGradient(const T* dy, const T* x, T* dw, int64_t m, int64_t n, int64_t k) {
  return {.a = dy,
          .a_row = 1,
          .a_col = n,
          .b = x,
          .b_row = k,
          .c = dw,
          .ldc = k,
          .m = n,
          .n = k,
          .k = m,
          .accumulate = true};
}

}  // namespace switchyard::train
