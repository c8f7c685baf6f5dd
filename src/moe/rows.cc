#include "moe/rows.h"

#include <cstring>

#include "core/check.h"

namespace switchyard {
namespace {

float FromStored(float x) { return x; }
float FromStored(BF16 x) { return ToFloat(x); }
float FromStored(F16 x) { return ToFloat(x); }

// body(row as an array of its C++ type)
template <typename Body>
void WithStored(DType dtype, const std::byte* row, const Body& body) {
  CHECK(IsRowDType(dtype));
  if (dtype == DType::kF32) {
    body(reinterpret_cast<const float*>(row));
  } else if (dtype == DType::kBF16) {
    body(reinterpret_cast<const BF16*>(row));
  } else {
    body(reinterpret_cast<const F16*>(row));
  }
}

}  // namespace

bool IsRowDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void StoreRow(DType dtype, const float* x, int64_t n, std::byte* row) {
  CHECK(IsRowDType(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(row, x, n * sizeof(float));
  } else if (dtype == DType::kBF16) {
    auto* y = reinterpret_cast<BF16*>(row);
    for (int64_t i = 0; i < n; ++i) y[i] = ToBF16(x[i]);
  } else {
    auto* y = reinterpret_cast<F16*>(row);
    for (int64_t i = 0; i < n; ++i) y[i] = ToF16(x[i]);
  }
}

void LoadRow(DType dtype, const std::byte* row, int64_t n, float* x) {
  WithStored(dtype, row, [&](const auto* stored) {
    for (int64_t i = 0; i < n; ++i) x[i] = FromStored(stored[i]);
  });
}

void AddWeightedRow(DType dtype, const std::byte* row, float weight, int64_t n, float* sum) {
  WithStored(dtype, row, [&](const auto* stored) {
    for (int64_t i = 0; i < n; ++i) sum[i] += weight * FromStored(stored[i]);
  });
}

}  // namespace switchyard
