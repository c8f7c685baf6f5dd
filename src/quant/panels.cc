#include "quant/panels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"

namespace switchyard {
namespace {

constexpr int64_t kPiece = 4;  // adjacent bytes of one row
constexpr int64_t kNibbleBytes = kPanelColumns / 2;
constexpr int kBlock = 32;
constexpr int kBlocks = kPanelColumns / kBlock;

// One of the scale arrays of a part: `count` elements per row, of `bytes` bytes each.
struct ScaleArray {
  int64_t count = 0, bytes = 0;
};
using ScaleArrays = std::array<ScaleArray, 4>;

struct Arrays {
  int64_t code_bytes = 0;  // code bytes of a row of a part
  ScaleArrays scales{};
};

Arrays ArraysOf(WeightFormat format, int64_t group_size) {
  switch (format) {
    case WeightFormat::kInt4Panels:
    case WeightFormat::kInt4HalfPanels:
      return {kNibbleBytes, {{{kPanelColumns / group_size, 2}}}};
    case WeightFormat::kInt4ZeroPanels:
    case WeightFormat::kInt4HalfZeroPanels:
      return {kNibbleBytes, {{{kPanelColumns / group_size, 2}, {kPanelColumns / group_size, 1}}}};
    case WeightFormat::kNvfp4Panels:
      return {kNibbleBytes, {{{2 * kBlocks, 1}}}};
    case WeightFormat::kMxfp4Panels:
      return {kNibbleBytes, {{{kBlocks, 1}}}};
    case WeightFormat::kQ4_0Panels:
      return {kNibbleBytes, {{{kBlocks, 2}}}};
    case WeightFormat::kQ8_0Panels:
      return {kPanelColumns, {{{kBlocks, 2}}}};
    case WeightFormat::kQ4KPanels:
      return {kNibbleBytes, {{{kBlocks, 1}, {kBlocks, 1}, {1, 2}, {1, 2}}}};
    case WeightFormat::kQ5KPanels:
      return {kNibbleBytes + kPanelColumns / 8, {{{kBlocks, 1}, {kBlocks, 1}, {1, 2}, {1, 2}}}};
    case WeightFormat::kQ6KPanels:
      return {kNibbleBytes + kPanelColumns / 4, {{{2 * kBlocks, 1}, {1, 2}}}};
    case WeightFormat::kIQ4XSPanels:
      return {kNibbleBytes, {{{kBlocks, 1}, {1, 2}}}};
    default:
      CheckFailed(__FILE__, __LINE__, "a weight format without panels");
  }
}

// Calls visit(from, offset, size) for each run of adjacent bytes of a row of a part. `from`: the
// run in `codes` or `scales`; `offset`: its byte offset in the matrix of panels.
template <typename Visit>
void ForRuns(WeightFormat format, int64_t group_size, int64_t k, int64_t row, int64_t part,
             uint8_t* codes, uint8_t* scales, const Visit& visit) {
  const Arrays arrays = ArraysOf(format, group_size);
  const PanelLayout layout = PanelLayoutOf(format, group_size);
  const int64_t lane = row % kPanelHeight;
  const int64_t panel = row / kPanelHeight * PanelBytes(format, group_size, k);
  int64_t at = panel + PanelScaleBytes(format, group_size, k) + part * layout.code_bytes;
  for (int64_t i = 0; i < arrays.code_bytes; i += kPiece, at += kPanelHeight * kPiece)
    visit(codes + i, at + lane * kPiece, kPiece);
  at = panel + part * layout.scale_bytes;
  for (const ScaleArray& array : arrays.scales) {
    for (int64_t i = 0; i < array.count; ++i, at += kPanelHeight * array.bytes) {
      visit(scales, at + lane * array.bytes, array.bytes);
      scales += array.bytes;
    }
  }
}

float Half(const uint8_t* p) {
  F16 half;
  std::memcpy(&half, p, sizeof half);
  return ToFloat(half);
}
float BFloat(const uint8_t* p) {
  BF16 half;
  std::memcpy(&half, p, sizeof half);
  return ToFloat(half);
}

int Nibble(const PanelRow& row, int64_t j) { return row.codes[j / 2] >> (j % 2 * 4) & 15; }

// Code 0 to 31 of column j of a row of kQ5KPanels.
int FiveBits(const PanelRow& row, int64_t j) {
  const uint8_t high = row.codes[kNibbleBytes + j / 32 * kPiece + j % 8 / 2];
  return Nibble(row, j) | (high >> (j % 32 / 8 * 2 + j % 2) & 1) << 4;
}

// Code 0 to 63 of column j of a row of kQ6KPanels.
int SixBits(const PanelRow& row, int64_t j) {
  const int64_t in_piece = j % 16;
  const uint8_t high = row.codes[kNibbleBytes + j / 16 * kPiece + in_piece % 8 / 2];
  const int64_t shift = 2 * (in_piece / 8 * 2 + j % 2);
  return Nibble(row, j) | (high >> shift & 3) << 4;
}

// Code -128 to 127 of column j of a row of kQ8_0Panels.
int Byte(const PanelRow& row, int64_t j) {
  return row.codes[j / 8 * 8 + j % 2 * kPiece + j % 8 / 2] - 128;
}

// Dequantizes column j of a row of int4 panels.
float Int4Value(WeightFormat format, int64_t group_size, const PanelRow& row, int64_t j) {
  const int64_t group = j / group_size;
  const bool zeros =
      format == WeightFormat::kInt4ZeroPanels || format == WeightFormat::kInt4HalfZeroPanels;
  const bool half =
      format == WeightFormat::kInt4HalfPanels || format == WeightFormat::kInt4HalfZeroPanels;
  const int zero = zeros ? row.scales[kPanelColumns / group_size * 2 + group] : kInt4Zero;
  const uint8_t* scale = row.scales + group * 2;
  return static_cast<float>(Nibble(row, j) - zero) * (half ? Half(scale) : BFloat(scale));
}

// Dequantizes column j of a row of a part of the matrix w.
float Value(const WeightView& w, const PanelRow& row, int64_t j) {
  if (IsInt4Panels(w.format)) return Int4Value(w.format, w.group_size, row, j);
  const uint8_t* s = row.scales;
  switch (w.format) {
    case WeightFormat::kMxfp4Panels:
      return kE2M1[Nibble(row, j)] * FromE8M0(s[j / kBlock]);
    case WeightFormat::kNvfp4Panels:
      return kE2M1[Nibble(row, j)] * (ToFloat(F8E4M3{s[j / kNvfp4BlockSize]}) * w.global_scale);
    case WeightFormat::kIQ4XSPanels: {
      const auto code = static_cast<int8_t>(s[j / kBlock]);
      const float scale = Half(s + kBlocks) * static_cast<float>(code);
      return scale * static_cast<float>(kNonLinear4[Nibble(row, j)]);
    }
    case WeightFormat::kQ4_0Panels:
      return Half(s + j / kBlock * 2) * static_cast<float>(Nibble(row, j) - 8);
    case WeightFormat::kQ8_0Panels:
      return Half(s + j / kBlock * 2) * static_cast<float>(Byte(row, j));
    case WeightFormat::kQ4KPanels:
    case WeightFormat::kQ5KPanels: {
      const int code = w.format == WeightFormat::kQ4KPanels ? Nibble(row, j) : FiveBits(row, j);
      const int64_t block = j / kBlock;
      const float scale = Half(s + 2 * kBlocks) * static_cast<float>(s[block]);
      const float min = Half(s + 2 * kBlocks + 2) * static_cast<float>(s[kBlocks + block]);
      return scale * static_cast<float>(code) - min;
    }
    default: {  // kQ6KPanels
      const auto code = static_cast<int8_t>(s[j / (kBlock / 2)]);
      const float scale = Half(s + 2 * kBlocks) * static_cast<float>(code);
      return scale * static_cast<float>(SixBits(row, j) - 32);
    }
  }
}

}  // namespace

PanelLayout PanelLayoutOf(WeightFormat format, int64_t group_size) {
  const Arrays arrays = ArraysOf(format, group_size);
  PanelLayout layout{.code_bytes = arrays.code_bytes * kPanelHeight};
  for (const ScaleArray& array : arrays.scales)
    layout.scale_bytes += array.count * array.bytes * kPanelHeight;
  return layout;
}

int64_t PanelScaleBytes(WeightFormat format, int64_t group_size, int64_t k) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = CeilDiv(k, kPanelColumns) * PanelLayoutOf(format, group_size).scale_bytes;
  return RoundUp(bytes, kLine);
}

int64_t PanelBytes(WeightFormat format, int64_t group_size, int64_t k) {
  return PanelScaleBytes(format, group_size, k) +
         CeilDiv(k, kPanelColumns) * PanelLayoutOf(format, group_size).code_bytes;
}

int64_t PanelMatrixBytes(WeightFormat format, int64_t group_size, int64_t n, int64_t k) {
  return CeilDiv(n, kPanelHeight) * PanelBytes(format, group_size, k);
}

double PanelBytesPerWeight(WeightFormat format, int64_t group_size) {
  const PanelLayout layout = PanelLayoutOf(format, group_size);
  return static_cast<double>(layout.code_bytes + layout.scale_bytes) /
         static_cast<double>(kPanelHeight * kPanelColumns);
}

void PutPanelRow(WeightFormat format, int64_t group_size, int64_t k, int64_t row, int64_t part,
                 const PanelRow& from, uint8_t* panels) {
  PanelRow copy = from;
  ForRuns(format, group_size, k, row, part, copy.codes, copy.scales,
          [panels](const uint8_t* bytes, int64_t at, int64_t size) {
            std::memcpy(panels + at, bytes, static_cast<size_t>(size));
          });
}

PanelRow GetPanelRow(WeightFormat format, int64_t group_size, int64_t k, int64_t row, int64_t part,
                     const uint8_t* panels) {
  PanelRow out{};
  ForRuns(format, group_size, k, row, part, out.codes, out.scales,
          [panels](uint8_t* bytes, int64_t at, int64_t size) {
            std::memcpy(bytes, panels + at, static_cast<size_t>(size));
          });
  return out;
}

WeightFormat PanelFormatOf(WeightFormat format, int64_t group_size, bool zeros) {
  if (format == WeightFormat::kMxfp4) return WeightFormat::kMxfp4Panels;
  if (format == WeightFormat::kNvfp4) return WeightFormat::kNvfp4Panels;
  const bool groups = group_size == kBlock || group_size == 2 * kBlock || group_size == 4 * kBlock;
  if (format != WeightFormat::kInt4Group || !groups) return format;
  return zeros ? WeightFormat::kInt4ZeroPanels : WeightFormat::kInt4Panels;
}

WeightFormat WithHalfScales(WeightFormat int4_panels) {
  CHECK(IsInt4Panels(int4_panels));
  return int4_panels == WeightFormat::kInt4Panels ? WeightFormat::kInt4HalfPanels
                                                  : WeightFormat::kInt4HalfZeroPanels;
}

void PutViewRow(const WeightView& from, int64_t row, WeightFormat format, int64_t to_row,
                uint8_t* panels) {
  const bool int4 = IsInt4Panels(format);
  const int64_t columns = int4                                   ? from.group_size
                          : format == WeightFormat::kNvfp4Panels ? kNvfp4BlockSize
                                                                 : kMxfp4BlockSize;
  const int64_t stored = from.row0 + row * from.row_step, of_row = CeilDiv(from.stored_k, columns);
  CHECK_EQ(from.col0 % columns, 0);
  const auto* codes =
      static_cast<const uint8_t*>(from.data) + (stored * from.stored_k + from.col0) / 2;
  const int64_t first = stored * of_row + from.col0 / columns;
  const auto* scales = static_cast<const uint8_t*>(from.scales) + first * (int4 ? 4 : 1);
  const auto* zeros = static_cast<const uint8_t*>(from.zeros);
  const int64_t groups_of_part = kPanelColumns / columns, groups = CeilDiv(from.k, columns);
  for (int64_t begin = 0; begin < from.k; begin += kPanelColumns) {
    PanelRow part{};
    const int64_t stored_columns = from.stored_k - from.col0 - begin;
    std::memcpy(part.codes, codes + begin / 2,
                static_cast<size_t>(std::min(stored_columns, kPanelColumns) / 2));
    const int64_t group = begin / columns, count = std::min(groups - group, groups_of_part);
    for (int64_t i = 0; i < count; ++i) {
      if (!int4) {
        part.scales[i] = scales[group + i];
        continue;
      }
      uint32_t bits;
      std::memcpy(&bits, scales + (group + i) * 4, sizeof bits);
      CHECK_EQ(bits & 0xffff, 0u);
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(part.scales + 2 * i, &half, sizeof half);
      if (zeros != nullptr) part.scales[2 * groups_of_part + i] = zeros[first + group + i];
    }
    PutPanelRow(format, from.group_size, from.k, to_row, begin / kPanelColumns, part, panels);
  }
}

void DequantizePanels(const WeightView& w, int64_t row, int64_t begin, int64_t end, float* out) {
  const auto* panels = static_cast<const uint8_t*>(w.data);
  while (begin < end) {
    const int64_t part = begin / kPanelColumns;
    const PanelRow values = GetPanelRow(w.format, w.group_size, w.stored_k, row, part, panels);
    for (const int64_t last = std::min(end, (part + 1) * kPanelColumns); begin < last; ++begin)
      *out++ = Value(w, values, begin % kPanelColumns);
  }
}

}  // namespace switchyard
