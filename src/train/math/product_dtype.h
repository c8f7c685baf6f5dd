// In which format the products of training take their operands.
#pragma once

#include <cstdint>

namespace switchyard::train {

// Sums are float32 either way. Products in float64 (gradient checks) know no other format.
enum class ProductDtype : uint8_t {
  kFloat32,
  kBFloat16,  // operands are rounded to the nearest bfloat16, ties to even; see bf16_product.h
};

}  // namespace switchyard::train
