// Matrix products of linear layers, dense and grouped by expert: forward, data gradient and weight
// gradient.
#pragma once

#include <cstdint>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

// Sizes of a linear layer, or of one layer for each group (expert) with weights [groups, n, k].
// Group g has the rows [begins[g], begins[g + 1]) of x and y, which may be empty: rows need no
// padding. Row ranges are read on the device. Strides are in elements; 0: the dense stride.
struct ProductShape {
  int64_t rows = 0;  // rows of x and y in memory; without `begins`, all are in group 0
  int64_t n = 0;     // outputs: columns of y, rows of a weight
  int64_t k = 0;     // inputs: columns of x and of a weight
  int groups = 1;    // at most kMaxProductGroups
  const int32_t* begins = nullptr;  // [groups + 1] ascending, the last at most `rows`; null: dense
  int64_t ldx = 0, ldy = 0, ldw = 0;  // strides of the rows of x, y and of a weight
  int64_t group_stride = 0;           // stride of the weights of two groups; 0: n · ldw
};
constexpr int kMaxProductGroups = 1024;

// All three functions select a kernel by format and GPU:
//
// - All operands bfloat16, on Hopper: tensor cores (wgmma), float32 sums. Addresses are multiples
//   of 16 bytes; n, k and all strides are multiples of 8 elements.
// - Everything else: float32 multiply-adds for any size and any mix of formats. This is slow, and
//   meant for tests and for small layers such as routers.
//
// Sums run along the inner dimension in one order that depends on its length alone. So the bits of
// a row do not depend on other rows or groups.

// y[r] (+)= x[r] · W[g(r)]ᵀ. Rows of no group are not written.
void LinearForward(const ProductShape& shape, ConstArray x, ConstArray w, Array y, bool accumulate,
                   Stream stream);
// dx[r] (+)= dy[r] · W[g(r)]. W has the layout of LinearForward.
void LinearInputGradient(const ProductShape& shape, ConstArray dy, ConstArray w, Array dx,
                         bool accumulate, Stream stream);
// dW[g] (+)= Σ dy[r]ᵀ · x[r] over the rows r of group g. dw has the strides of the weight (ldw,
// group_stride). Without `accumulate`, a group without rows gets zeros.
void LinearWeightGradient(const ProductShape& shape, ConstArray dy, ConstArray x, float* dw,
                          bool accumulate, Stream stream);

// Whether the three functions use tensor cores for these sizes and strides on the current GPU, if
// all operands are aligned bfloat16 arrays.
bool UsesTensorCores(const ProductShape& shape);

}  // namespace switchyard::train::gpu
