// Number types as they are stored: names, sizes, and scalar conversions to and from float32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace switchyard {

// Storage types of tensors. Block-quantized formats are a weight's property (quant/weight_view.h),
// not a DType.
enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool
};

size_t SizeOf(DType dtype);  // bytes of one element
std::string_view Name(
    DType dtype);  // "float32", "bfloat16", … as config.json and --dtype spell them
std::optional<DType> ParseDType(std::string_view name);  // "bfloat16", "torch.bfloat16", "bf16", …
std::optional<DType> ParseSafetensorsDType(std::string_view name);  // "BF16", "F8_E4M3", …

// bfloat16: the upper half of a float32. Rounds to nearest even; NaN stays NaN.
struct BF16 {
  uint16_t bits = 0;
};
inline float ToFloat(BF16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline BF16 ToBF16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE half precision. Rounds to nearest even, overflows to infinity.
struct F16 {
  uint16_t bits = 0;
};
float ToFloat(F16 x);
F16 ToF16(float x);

// FP8 with 4 exponent and 3 mantissa bits, no infinity, NaN = S.1111.111, largest 448 (OCP FP8
// E4M3FN).
struct F8E4M3 {
  uint8_t bits = 0;
};
float ToFloat(F8E4M3 x);
F8E4M3 ToF8E4M3(float x);  // rounds to nearest even, saturates at ±448

}  // namespace switchyard
