// Operand format of the matrix products of training.
#pragma once

#include <cstdint>

namespace switchyard::train {

// Float products accumulate in float32 in both cases. Products of double (gradient checks) stay in
// float64 and support only kFloat32.
enum class ProductDtype : uint8_t {
  kFloat32,
  kBFloat16,  // operands are rounded to the nearest bfloat16, ties to even; see bf16_product.h
};

}  // namespace switchyard::train
