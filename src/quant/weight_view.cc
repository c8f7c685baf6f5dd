#include "quant/weight_view.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"
#include "quant/formats.h"
#include "quant/panels.h"

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
    case WeightFormat::kFp8Channel:
      return "fp8-channel";
    case WeightFormat::kInt8Channel:
      return "int8-channel";
    case WeightFormat::kInt4Group:
      return "int4-group";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    case WeightFormat::kInt4Panels:
      return "int4-panels";
    case WeightFormat::kInt4ZeroPanels:
      return "int4-zero-panels";
    case WeightFormat::kInt4HalfPanels:
      return "int4-half-panels";
    case WeightFormat::kInt4HalfZeroPanels:
      return "int4-half-zero-panels";
    case WeightFormat::kNvfp4Panels:
      return "nvfp4-panels";
    case WeightFormat::kMxfp4Panels:
      return "mxfp4-panels";
    case WeightFormat::kQ4_0Panels:
      return "q4_0-panels";
    case WeightFormat::kQ8_0Panels:
      return "q8_0-panels";
    case WeightFormat::kQ4KPanels:
      return "q4_k-panels";
    case WeightFormat::kQ5KPanels:
      return "q5_k-panels";
    case WeightFormat::kQ6KPanels:
      return "q6_k-panels";
    case WeightFormat::kIQ4XSPanels:
      return "iq4_xs-panels";
  }
  CheckFailed(__FILE__, __LINE__, "unknown weight format");
}

std::string_view Name(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kNone:
      return "float32";
    case ActivationFormat::kFp8Group:
      return "fp8-group";
    case ActivationFormat::kFp8Token:
      return "fp8-token";
    case ActivationFormat::kFp8Tensor:
      return "fp8-tensor";
    case ActivationFormat::kInt8Token:
      return "int8-token";
    case ActivationFormat::kBFloat16:
      return "bfloat16";
    case ActivationFormat::kInt8Group:
      return "int8-group";
  }
  CheckFailed(__FILE__, __LINE__, "unknown activation format");
}

double BytesPerWeight(WeightFormat format, int64_t group_size) {
  switch (format) {
    case WeightFormat::kF32:
      return 4;
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return 2;
    case WeightFormat::kFp8Block:
      return 1 + 4.0 / (kFp8BlockSize * kFp8BlockSize);
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return 1;
    case WeightFormat::kInt4Group:
      return 0.5 + 5.0 / static_cast<double>(group_size);
    case WeightFormat::kMxfp4:
      return 0.5 + 1.0 / kMxfp4BlockSize;
    case WeightFormat::kNvfp4:
      return 0.5 + 1.0 / kNvfp4BlockSize;
    default:
      return PanelBytesPerWeight(format, group_size);
  }
}

double StoredBytes(const WeightView& w) {
  if (w.n == 0 || w.k == 0) return 0;
  const int64_t group = std::max(w.group_size, 1);
  if (HasPanels(w.format)) return static_cast<double>(PanelMatrixBytes(w.format, group, w.n, w.k));
  return static_cast<double>(w.n) * static_cast<double>(w.k) * BytesPerWeight(w.format, group);
}

namespace {

// Tensors in a mapped file may have any alignment.
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

float E4M3(uint8_t code) {
  static const std::array<float, 256> kTable = MakeE4M3Table();
  return kTable[code];
}

// 4-bit code of column j: two per byte, low nibble first.
int Nibble(const uint8_t* codes, int64_t j) { return codes[j / 2] >> (j % 2 * 4) & 0xf; }

const uint8_t* Bytes(const void* p) { return static_cast<const uint8_t*>(p); }

void DequantizeFp8Block(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const uint8_t* codes = Bytes(w.data) + row * w.stored_k;
  const int64_t first = row / kFp8BlockSize * CeilDiv(w.stored_k, kFp8BlockSize);
  for (int64_t j = begin; j < end; ++j) {
    *out++ = E4M3(codes[j]) * LoadAt<float>(w.scales, first + j / kFp8BlockSize);
  }
}

void DequantizeFp8Channel(const WeightView& w, int64_t row, int64_t begin, int64_t end,
                          float* out) {
  const uint8_t* codes = Bytes(w.data) + row * w.stored_k;
  const float scale = LoadAt<float>(w.scales, row);
  for (int64_t j = begin; j < end; ++j) *out++ = E4M3(codes[j]) * scale;
}

void DequantizeInt8(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const auto* codes = static_cast<const int8_t*>(w.data) + row * w.stored_k;
  const float scale = LoadAt<float>(w.scales, row);
  for (int64_t j = begin; j < end; ++j) *out++ = static_cast<float>(codes[j]) * scale;
}

void DequantizeInt4(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const uint8_t* codes = Bytes(w.data) + row * (w.stored_k / 2);
  const int64_t first = row * CeilDiv(w.stored_k, w.group_size);
  for (int64_t j = begin; j < end;) {
    const int64_t group = j / w.group_size;
    const int zero = w.zeros != nullptr ? Bytes(w.zeros)[first + group] : kInt4Zero;
    const auto scale = LoadAt<float>(w.scales, first + group);
    for (const int64_t last = std::min(end, (group + 1) * w.group_size); j < last; ++j) {
      *out++ = static_cast<float>(Nibble(codes, j) - zero) * scale;
    }
  }
}

void DequantizeMxfp4(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const uint8_t* codes = Bytes(w.data) + row * (w.stored_k / 2);
  const uint8_t* scales = Bytes(w.scales) + row * (w.stored_k / kMxfp4BlockSize);
  for (int64_t j = begin; j < end; ++j) {
    *out++ = kE2M1[Nibble(codes, j)] * FromE8M0(scales[j / kMxfp4BlockSize]);
  }
}

void DequantizeNvfp4(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const uint8_t* codes = Bytes(w.data) + row * (w.stored_k / 2);
  const uint8_t* scales = Bytes(w.scales) + row * (w.stored_k / kNvfp4BlockSize);
  for (int64_t j = begin; j < end; ++j) {
    *out++ = kE2M1[Nibble(codes, j)] * (E4M3(scales[j / kNvfp4BlockSize]) * w.global_scale);
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
      return DequantizeFp8Block(w, stored_row, begin, end, out);
    case WeightFormat::kFp8Channel:
      return DequantizeFp8Channel(w, stored_row, begin, end, out);
    case WeightFormat::kInt8Channel:
      return DequantizeInt8(w, stored_row, begin, end, out);
    case WeightFormat::kInt4Group:
      return DequantizeInt4(w, stored_row, begin, end, out);
    case WeightFormat::kMxfp4:
      return DequantizeMxfp4(w, stored_row, begin, end, out);
    case WeightFormat::kNvfp4:
      return DequantizeNvfp4(w, stored_row, begin, end, out);
    default:
      return DequantizePanels(w, stored_row, begin, end, out);
  }
}

}  // namespace switchyard
