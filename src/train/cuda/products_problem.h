// Internal interface between products.cu, which validates and selects a kernel, and
// products_wgmma.cu.
#pragma once

#include <cstdint>

#include "train/cuda/products.h"

namespace switchyard::train::gpu {

enum class ProductForm : uint8_t { kForward, kInputGradient, kWeightGradient };

// D (+)= A · B for each group, without zero strides. For weight gradients, the inner dimension is
// the rows of the group; else these are the rows of D.
struct ProductProblem {
  ProductForm form = ProductForm::kForward;
  ProductShape shape;
  ConstArray a;  // x, dy, dy
  ConstArray b;  // w, w, x
  Array d;       // y, dx, dw
  bool accumulate = false;
};

// All operands bfloat16 with the alignment of products.h; shape.rows > 0. Throws Error kResource if
// the launch fails.
void StartWgmmaProduct(const ProductProblem& problem, Stream stream);

}  // namespace switchyard::train::gpu
