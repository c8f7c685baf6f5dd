#include "core/dtype.h"

#include <array>
#include <cmath>

#include "core/check.h"

namespace switchyard {
namespace {

struct Entry {
  DType dtype;
  size_t size;
  std::string_view name, short_name, safetensors;
};

constexpr std::array kTable = {
    Entry{DType::kF32, 4, "float32", "fp32", "F32"},
    Entry{DType::kBF16, 2, "bfloat16", "bf16", "BF16"},
    Entry{DType::kF16, 2, "float16", "half", "F16"},
    Entry{DType::kF8E4M3, 1, "float8_e4m3fn", "fp8_e4m3", "F8_E4M3"},
    Entry{DType::kF8E5M2, 1, "float8_e5m2", "fp8_e5m2", "F8_E5M2"},
    Entry{DType::kI64, 8, "int64", "i64", "I64"},
    Entry{DType::kI32, 4, "int32", "i32", "I32"},
    Entry{DType::kI16, 2, "int16", "i16", "I16"},
    Entry{DType::kI8, 1, "int8", "i8", "I8"},
    Entry{DType::kU8, 1, "uint8", "u8", "U8"},
    Entry{DType::kBool, 1, "bool", "bool", "BOOL"},
    // Scales of MX formats. Other checkpoints store the same bytes as U8.
    Entry{DType::kU8, 1, "float8_e8m0fnu", "e8m0", "F8_E8M0"},
};

const Entry& Find(DType dtype) {
  for (const Entry& e : kTable) {
    if (e.dtype == dtype) return e;
  }
  CheckFailed(__FILE__, __LINE__, "unknown dtype");
}

}  // namespace

size_t SizeOf(DType dtype) { return Find(dtype).size; }
std::string_view Name(DType dtype) { return Find(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const Entry& e : kTable) {
    if (e.name == name || e.short_name == name) return e.dtype;
  }
  if (name == "float") return DType::kF32;
  return std::nullopt;
}

std::optional<DType> ParseSafetensorsDType(std::string_view name) {
  for (const Entry& e : kTable) {
    if (e.safetensors == name) return e.dtype;
  }
  return std::nullopt;
}

float ToFloat(F16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24
    return std::copysign(static_cast<float>(mantissa) * 0x1p-24f, std::bit_cast<float>(sign));
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

F16 ToF16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};  // NaN
  if (magnitude >= 0x477ff000u)
    return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                     // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

float ToFloat(F8E4M3 x) {
  const int exponent = (x.bits >> 3) & 0xf;
  const int mantissa = x.bits & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return x.bits & 0x80 ? -magnitude : magnitude;
}

F8E4M3 ToF8E4M3(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return {static_cast<uint8_t>(sign | 0x7f)};
  if (magnitude >= 448.0f) return {static_cast<uint8_t>(sign | 0x7e)};
  if (magnitude <
      0x1p-6f) {  // subnormals: multiples of 2^-9. A result of 8 is the code of the smallest normal
    return {static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)))};
  }
  const uint32_t u = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = u + 0x7ffffu + ((u >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - ((127u - 7u) << 3);
  return {static_cast<uint8_t>(sign | (code > 0x7e ? 0x7e : code))};
}

}  // namespace switchyard
