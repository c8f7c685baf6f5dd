// Operand format of the matrix products of training.
#pragma once

#include <cstdint>

namespace switchyard::train {

// Accumulation is float32 in both cases. float64 products (gradient checks) support only kFloat32.
enum class ProductDtype : uint8_t {
  kFloat32,
  kBFloat16,  // operands are rounded to the nearest bfloat16, ties to even; see bf16_product.h
};

}  // namespace switchyard::train
