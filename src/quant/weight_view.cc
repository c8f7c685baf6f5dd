#include "quant/weight_view.h"

#include <array>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"
#include "quant/formats.h"

namespace switchyard {

std::string_view Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "float32";
    case WeightFormat::kBF16:
      return "bfloat16";
    case WeightFormat::kF16:
      return "float16";
    case WeightFormat::kFp8Block:
      return "fp8-block";
    case WeightFormat::kMxfp4:
      return "mxfp4";
  }
  CheckFailed(__FILE__, __LINE__, "unknown weight format");
}

double BytesPerWeight(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 4;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return 2;
    case WeightFormat::kFp8Block:
      return 1 + 4.0 / (kFp8BlockSize * kFp8BlockSize);
    case WeightFormat::kMxfp4:
      return 0.5 + 1.0 / kMxfp4BlockSize;
  }
  CheckFailed(__FILE__, __LINE__, "unknown weight format");
}

namespace {

// Tensors of a mapped file lie at any address.
template <typename T>
T LoadAt(const void* base, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void Convert(const void* data, int64_t first, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(LoadAt<T>(data, first + i));
}

std::array<float, 256> MakeE4M3Table() {
  std::array<float, 256> table;
  for (int i = 0; i < 256; ++i) table[i] = ToFloat(F8E4M3{static_cast<uint8_t>(i)});
  return table;
}

void DequantizeFp8(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  static const std::array<float, 256> kTable = MakeE4M3Table();
  const auto* codes = static_cast<const uint8_t*>(w.data) + row * w.stored_k;
  const int64_t first = row / kFp8BlockSize * CeilDiv(w.stored_k, kFp8BlockSize);
  for (int64_t j = begin; j < end; ++j) {
    *out++ = kTable[codes[j]] * LoadAt<float>(w.scales, first + j / kFp8BlockSize);
  }
}

void DequantizeMxfp4(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const auto* codes = static_cast<const uint8_t*>(w.data) + row * (w.stored_k / 2);
  const auto* scales = static_cast<const uint8_t*>(w.scales) + row * (w.stored_k / kMxfp4BlockSize);
  for (int64_t j = begin; j < end; ++j) {
    const int code = codes[j / 2] >> (j % 2 * 4) & 0xf;
    *out++ = kE2M1[code] * FromE8M0(scales[j / kMxfp4BlockSize]);
  }
}

}  // namespace

void DequantizeRow(const WeightView& w, int64_t row, int64_t col_begin, int64_t col_end,
                   float* out) {
  const int64_t stored_row = w.row0 + row * w.row_step;
  const int64_t begin = w.col0 + col_begin, end = w.col0 + col_end;
  const int64_t first = stored_row * w.stored_k + begin;
  const int64_t count = end - begin;
  switch (w.format) {
    case WeightFormat::kF32:
      std::memcpy(out, static_cast<const char*>(w.data) + first * 4, count * 4);
      return;
    case WeightFormat::kBF16:
      return Convert<BF16>(w.data, first, count, out);
    case WeightFormat::kF16:
      return Convert<F16>(w.data, first, count, out);
    case WeightFormat::kFp8Block:
      return DequantizeFp8(w, stored_row, begin, end, out);
    case WeightFormat::kMxfp4:
      return DequantizeMxfp4(w, stored_row, begin, end, out);
  }
  CheckFailed(__FILE__, __LINE__, "unknown weight format");
}

}  // namespace switchyard
