#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr float kMinGlobal = 0x1p-100f;     // times e4m3's least value, it is a normal float32
constexpr float kTooLarge = 4.0f;           // times 2^126, it overflows float32
constexpr uint8_t kMaxMxfp4Exponent = 128;  // 128 + 126 is bfloat16's largest exponent

const uint8_t* Bytes(const void* p) { return static_cast<const uint8_t*>(p); }
int64_t StoredRow(const WeightView& w, int64_t i) { return w.row0 + i * w.row_step; }

int64_t ColumnsOfScale(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kMxfp4:
      return kMxfp4BlockSize;
    case WeightFormat::kNvfp4:
      return kNvfp4BlockSize;
    default:
      return w.group_size;
  }
}

// Whether `fits` holds for all bytes of `scales` in the view's columns.
bool All(const WeightView& w, const void* scales, const auto& fits) {
  const int64_t columns = ColumnsOfScale(w), stored = CeilDiv(w.stored_k, columns);
  const int64_t first = w.col0 / columns, last = CeilDiv(w.col0 + w.k, columns);
  for (int64_t i = 0; i < w.n; ++i) {
    const uint8_t* row = Bytes(scales) + StoredRow(w, i) * stored;
    if (!std::all_of(row + first, row + last, fits)) return false;
  }
  return true;
}
bool AtMost(const WeightView& w, const void* scales, uint8_t most) {
  return All(w, scales, [&](uint8_t x) { return x <= most; });
}

bool CanRescaleNvfp4(const WeightView& w) {
  constexpr float kLargestCode = 448.0f;
  if (!(w.global_scale >= kMinGlobal && w.global_scale < kTooLarge)) return false;
  if (w.global_scale * kLargestCode < kTooLarge) return true;
  return All(w, w.scales,
             [&](uint8_t x) { return std::abs(ToFloat(F8E4M3{x})) * w.global_scale < kTooLarge; });
}

// Scales per row of a tile; 0: the view cannot be packed.
int ScalesOf(const WeightView& w) {
  switch (w.format) {
    case WeightFormat::kMxfp4:
      return w.col0 % kMxfp4BlockSize == 0 && AtMost(w, w.scales, kMaxMxfp4Exponent) ? 2 : 0;
    case WeightFormat::kNvfp4:
      return w.col0 % kNvfp4BlockSize == 0 && CanRescaleNvfp4(w) ? 4 : 0;
    case WeightFormat::kInt4Group:
      if (w.zeros && !AtMost(w, w.zeros, kW4A16MaxZero)) return 0;
      for (const int scales : {1, 2, 4})
        if (w.group_size % (kW4A16Tile / scales) == 0 && w.col0 % (kW4A16Tile / scales) == 0)
          return scales;
      return 0;
    default:
      return 0;
  }
}

W4A16Kind KindOf(WeightFormat format) {
  return format == WeightFormat::kMxfp4   ? W4A16Kind::kMxfp4
         : format == WeightFormat::kNvfp4 ? W4A16Kind::kNvfp4
                                          : W4A16Kind::kInt4;
}

// ORs the codes of one row into the records of its tiles, which were zeroed.
void AddCodes(const WeightView& w, int64_t row, int tile_row, int64_t record_bytes,
              std::byte* records) {
  const uint8_t* codes = Bytes(w.data) + (StoredRow(w, row) * w.stored_k + w.col0) / 2;
  for (int64_t column = 0; column < w.k; column += 2) {
    const uint8_t two = codes[column / 2];
    const W4A16Position at = W4A16CodePosition(tile_row, static_cast<int>(column % kW4A16Tile));
    std::byte* to = records + column / kW4A16Tile * record_bytes + (at.thread * 4 + at.run) * 4;
    uint32_t word;
    std::memcpy(&word, to, sizeof(word));
    word |= static_cast<uint32_t>(two & 0xf) << at.shift;
    // The odd column's position is 16 bits above that of the even one.
    if (column + 1 < w.k) word |= static_cast<uint32_t>(two >> 4) << (at.shift + 16);
    std::memcpy(to, &word, sizeof(word));
  }
}

// Writes the scales (and zero points) of one row.
void WriteScales(W4A16Format format, const WeightView& w, int64_t row, int tile_row,
                 int64_t record_bytes, std::byte* records) {
  const int64_t group = ColumnsOfScale(w), stored = CeilDiv(w.stored_k, group);
  const int64_t columns = kW4A16Tile / format.scales, all = CeilDiv(w.k, columns);
  const int64_t row_scales = StoredRow(w, row) * stored;
  for (int64_t i = 0; i < all; ++i) {
    const int64_t from = row_scales + (w.col0 + i * columns) / group;
    std::byte* scales = records + i / format.scales * record_bytes + kW4A16CodeBytes;
    const int at = W4A16ScaleAt(tile_row, static_cast<int>(i % format.scales), format.scales);
    switch (format.kind) {
      case W4A16Kind::kMxfp4:
        scales[at] = std::byte(Bytes(w.scales)[from] + kW4A16ScaleShift);
        break;
      case W4A16Kind::kNvfp4:
        scales[at] = std::byte(Bytes(w.scales)[from]);
        break;
      case W4A16Kind::kInt4:
        std::memcpy(scales + at * 4, Bytes(w.scales) + from * 4, 4);
        scales[kW4A16Tile * format.scales * 4 + at] =
            std::byte(w.zeros ? Bytes(w.zeros)[from] : kInt4Zero);
        break;
    }
  }
}

}  // namespace

std::optional<W4A16Format> W4A16FormatOf(std::span<const WeightView* const> views, int parts) {
  W4A16Format format = {.kind = KindOf(views[0]->format), .scales = 0};
  for (const WeightView* w : views) {
    const int scales = w->format == views[0]->format ? ScalesOf(*w) : 0;
    const bool tiles = parts == 1 || w->n % kW4A16Tile == 0;
    if (scales == 0 || (w->format == WeightFormat::kNvfp4 && !tiles)) return std::nullopt;
    format.scales = std::max(format.scales, scales);
  }
  return format;
}

int64_t W4A16Bytes(W4A16Format format, int64_t n, int64_t k) {
  return W4A16RowTiles(n) * W4A16ColumnTiles(k) * W4A16RecordBytes(format);
}

void PackW4A16(W4A16Format format, std::span<const WeightView* const> parts, std::byte* records,
               float* globals, ThreadPool& pool) {
  const int64_t part_rows = parts[0]->n, n = part_rows * std::ssize(parts), k = parts[0]->k;
  const int64_t record_bytes = W4A16RecordBytes(format);
  const int64_t row_bytes = W4A16ColumnTiles(k) * record_bytes;  // bytes per 64 rows
  for (const WeightView* w : parts) CHECK(w->n == part_rows && w->k == k);
  CHECK(globals || format.kind != W4A16Kind::kNvfp4);
  pool.RunRanges(W4A16RowTiles(n), 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      std::byte* to = records + tile * row_bytes;
      std::memset(to, 0, row_bytes);
      const int64_t first = tile * kW4A16Tile, rows = std::min<int64_t>(kW4A16Tile, n - first);
      for (int64_t i = 0; i < rows; ++i) {
        const WeightView& w = *parts[(first + i) / part_rows];
        const int64_t row = (first + i) % part_rows;
        AddCodes(w, row, static_cast<int>(i), record_bytes, to);
        WriteScales(format, w, row, static_cast<int>(i), record_bytes, to);
      }
      if (format.kind == W4A16Kind::kNvfp4)
        globals[tile] = std::ldexp(parts[first / part_rows]->global_scale, kW4A16ScaleShift);
    }
  });
}

}  // namespace switchyard::cuda
