// Operand format of the matrix products of training.
#pragma once

#include <cstdint>

namespace switchyard::train {

// The type of the operands of float products; accumulation is in float32 for both values. Products
// of double (gradient checks) use float64 throughout and support only kFloat32.
enum class ProductDtype : uint8_t {
  kFloat32,
  kBFloat16,  // operands are rounded to the nearest bfloat16, ties to even; see bf16_product.h
};

}  // namespace switchyard::train
