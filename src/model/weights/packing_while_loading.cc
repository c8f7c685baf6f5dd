// Quantizes plain matrices on load (`--quantization`). Every rank derives codes and scales from the
// whole matrix, so that weights do not depend on the parallel layout.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "core/check.h"
#include "core/error.h"
#include "model/weights/checkpoint_reader.h"
#include "quant/panels.h"
#include "quant/quantize.h"

namespace switchyard {
namespace {

constexpr int64_t kRowsOfJob = 128;  // a multiple of FP8's blocks and of panels

// The layout parameters of a format.
struct Layout {
  int64_t row_unit = 1, col_unit = 1;  // rows and columns that share a scale
  bool whole_rows = false;             // a scale depends on all columns
  bool whole_matrix = false;           // a scale depends on all of the matrix
  int64_t bits = 8;                    // bits of a code
  size_t scale_bytes = sizeof(float);
};

Layout LayoutOf(const LinearScheme& scheme) {
  switch (scheme.format) {
    case WeightFormat::kFp8Block:
      return {.row_unit = kFp8BlockSize, .col_unit = kFp8BlockSize};
    case WeightFormat::kInt4Group:
      return {.col_unit = scheme.group_size, .bits = 4};
    case WeightFormat::kMxfp4:
      return {.col_unit = kMxfp4BlockSize, .bits = 4, .scale_bytes = 1};
    case WeightFormat::kNvfp4:
      return {.col_unit = kNvfp4BlockSize, .whole_matrix = true, .bits = 4, .scale_bytes = 1};
    default:  // a scale for each row
      return {.whole_rows = true};
  }
}

// A plain matrix in its file, by rows 0 … total_rows of the request.
class PlainRows {
 public:
  PlainRows(const MatrixRequest& r, const StoredTensor& t)
      : t_(&t),
        name_(r.name),
        row0_(r.row0),
        row_step_(r.row_step),
        picked_(r.picked),
        transposed_(r.transposed),
        n_(r.n),
        k_(r.k) {
    data_ = t.data + static_cast<size_t>(r.expert * r.n * r.k) * SizeOf(t.dtype);
  }

  void Read(int64_t row, Range cols, float* out) const {
    const int64_t stored = StoredRow(row);
    const WeightView view{.format = PlainFormat(t_->dtype),
                          .data = data_,
                          .stored_k = transposed_ ? n_ : k_,
                          .n = transposed_ ? k_ : n_,
                          .k = transposed_ ? n_ : k_};
    if (!transposed_) return DequantizeRow(view, stored, cols.begin, cols.end, out);
    for (int64_t j = cols.begin; j < cols.end; ++j) {
      DequantizeRow(view, j, stored, stored + 1, out + (j - cols.begin));
    }
  }

  // No format can scale a row with NaN or infinity.
  [[noreturn]] void Refuse(int64_t row) const {
    throw Invalid(
        "{}: tensor \"{}\" has a weight that is NaN or infinite in {} {}, which cannot be "
        "packed (--quantization); the file is damaged",
        t_->file, name_, transposed_ ? "column" : "row", StoredRow(row));
  }

 private:
  int64_t StoredRow(int64_t row) const {
    return row0_ + (picked_.empty() ? row : picked_[static_cast<size_t>(row)]) * row_step_;
  }

  const StoredTensor* t_;
  std::string name_;
  const uint8_t* data_;
  int64_t row0_, row_step_;
  std::span<const int32_t> picked_;
  bool transposed_;
  int64_t n_, k_;
};

// The packed rows and columns, their destination, and the columns read for them. Rows and columns
// are full units, although the view may begin or end within a unit.
struct Target {
  Layout layout;
  LinearScheme scheme;
  Range rows, cols;   // rows and columns of the request
  Range read_cols;    // columns that scales depend on
  float largest = 0;  // largest magnitude of the matrix, for formats with whole_matrix
  WeightFormat panels = WeightFormat::kF32;  // panel format; kF32: format of the scheme
  uint8_t* codes = nullptr;                  // codes or panels
  uint8_t* scales = nullptr;
  uint8_t* zeros = nullptr;  // null: the scheme has no zero points

  size_t CodeBytes(int64_t columns) const { return static_cast<size_t>(columns * layout.bits / 8); }
  size_t ScaleBytes(int64_t columns) const {
    return layout.scale_bytes *
           static_cast<size_t>(layout.whole_rows ? 1 : CeilDiv(columns, layout.col_unit));
  }
  size_t ZeroBytes(int64_t columns) const {
    return scheme.zeros ? static_cast<size_t>(CeilDiv(columns, layout.col_unit)) : 0;
  }
  size_t scale_rows() const { return static_cast<size_t>(CeilDiv(rows.size(), layout.row_unit)); }
};

// Packs rows `part` of the target's rows.
void PackRows(const PlainRows& from, const Target& to, Range part) {
  const int64_t width = to.read_cols.size();
  // Appends a row with the matrix's largest magnitude, which determines the common scale. The row
  // is dropped afterwards.
  const int64_t extra = to.layout.whole_matrix ? 1 : 0;
  std::vector<float> values(static_cast<size_t>((part.size() + extra) * width));
  if (extra != 0) values.back() = to.largest;
  for (int64_t i = part.begin; i < part.end; ++i) {
    float* row = values.data() + (i - part.begin) * width;
    from.Read(i, to.read_cols, row);
    if (!std::all_of(row, row + width, [](float x) { return std::isfinite(x); })) from.Refuse(i);
  }
  const WeightView packed = Quantize(to.scheme.format, values, part.size() + extra, width,
                                     {.group_size = static_cast<int32_t>(to.scheme.group_size),
                                      .symmetric = !to.scheme.zeros,
                                      .search = true});
  if (extra != 0) {
    CHECK_EQ(packed.global_scale, Nvfp4GlobalScale(to.largest));
  }
  if (HasPanels(to.panels)) {
    for (int64_t i = 0; i < part.size(); ++i)
      PutViewRow(packed, i, to.panels, part.begin - to.rows.begin + i, to.codes);
    return;
  }
  const int64_t skipped = to.cols.begin - to.read_cols.begin, kept = to.cols.size();
  const auto* codes = static_cast<const uint8_t*>(packed.data) + to.CodeBytes(skipped);
  uint8_t* to_codes = to.codes + (part.begin - to.rows.begin) * to.CodeBytes(kept);
  for (int64_t i = 0; i < part.size(); ++i) {
    std::memcpy(to_codes + i * to.CodeBytes(kept), codes + i * to.CodeBytes(width),
                to.CodeBytes(kept));
  }
  // A row's single scale covers all its columns. With several scales per row, only the kept columns
  // were read. So no scale has to be dropped.
  const int64_t unit = to.layout.row_unit;
  std::memcpy(to.scales + (part.begin - to.rows.begin) / unit * to.ScaleBytes(kept), packed.scales,
              static_cast<size_t>(CeilDiv(part.size(), unit)) * to.ScaleBytes(kept));
  if (to.zeros) {
    std::memcpy(to.zeros + (part.begin - to.rows.begin) * to.ZeroBytes(kept), packed.zeros,
                static_cast<size_t>(part.size()) * to.ZeroBytes(kept));
  }
}

Range Widen(Range part, int64_t unit, int64_t limit) {
  return {part.begin / unit * unit, std::min(limit, CeilDiv(part.end, unit) * unit)};
}

Target TargetOf(const MatrixRequest& r, WeightFormat format) {
  Target to{.layout = LayoutOf(r.scheme), .scheme = r.scheme};
  if (HasPanels(format)) to.panels = format;
  const int64_t total = r.total_rows > 0 ? r.total_rows : r.n;
  to.rows = Widen(r.rows, to.layout.row_unit, total);
  // 4-bit codes are stored in full bytes.
  to.cols = Widen(r.cols, to.layout.whole_rows ? 1 : to.layout.col_unit, r.k);
  to.read_cols = to.layout.whole_rows ? Range{0, r.k} : to.cols;
  return to;
}

// The largest magnitude in rows [0, rows) of k numbers. Throws Error if one is not finite, on the
// calling thread, since the pool's threads must not throw.
float LargestMagnitude(CheckpointReader& in, const PlainRows& from, int64_t rows, int64_t k) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> largest(static_cast<size_t>(rows));
  in.pool().RunRanges(rows, kRowsOfJob, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = begin; i < end; ++i) {
      from.Read(i, {0, k}, row.data());
      for (float x : row) largest[i] = std::max(largest[i], std::isfinite(x) ? std::fabs(x) : kInf);
    }
  });
  const auto most = std::ranges::max_element(largest);
  if (*most == kInf) from.Refuse(most - largest.begin());
  return *most;
}

void CheckColumnMultiple(const MatrixRequest& r) {
  const int64_t unit = r.scheme.format == WeightFormat::kInt4Group ? 2
                       : r.scheme.format == WeightFormat::kMxfp4   ? kMxfp4BlockSize
                       : r.scheme.format == WeightFormat::kNvfp4   ? kNvfp4BlockSize
                                                                   : 1;
  if (r.k % unit == 0) return;
  throw Invalid("--quantization: {} gives tensor \"{}\" {} columns; {} needs a multiple of {}",
                r.keys, r.name, r.k, Name(r.scheme.format), unit);
}

}  // namespace

WeightView ReadAndPack(CheckpointReader& in, const MatrixRequest& r) {
  const StoredTensor* t = FindPlain(in, r);
  if (!t) return {};
  CheckColumnMultiple(r);
  const WeightFormat format = ImpliedFormat(in.config(), r);
  Target to = TargetOf(r, format);
  WeightView view{.format = format,
                  .data = t->data,
                  .group_size = static_cast<int32_t>(r.scheme.group_size),
                  .activation = r.scheme.activation,
                  .stored_k = to.cols.size(),
                  .row0 = r.rows.begin - to.rows.begin,
                  .col0 = r.cols.begin - to.cols.begin,
                  .n = r.rows.size(),
                  .k = r.cols.size(),
                  .owner = t->owner};
  if (!in.read_data() || view.n == 0 || view.k == 0) return view;
  const PlainRows from(r, *t);
  if (to.layout.whole_matrix) {
    to.largest = LargestMagnitude(in, from, r.total_rows > 0 ? r.total_rows : r.n, r.k);
    view.global_scale = Nvfp4GlobalScale(to.largest);
  }
  const size_t row_bytes = to.CodeBytes(to.cols.size());
  const auto start = [&] {
    for (int64_t first = to.rows.begin; first < to.rows.end; first += kRowsOfJob) {
      const Range part = {first, std::min(to.rows.end, first + kRowsOfJob)};
      in.Later(row_bytes * static_cast<size_t>(part.size()),
               [from, to, part] { PackRows(from, to, part); });
    }
  };
  if (HasPanels(format)) {
    const Slabs::Piece piece = in.slabs().Allocate(static_cast<size_t>(
        PanelMatrixBytes(format, view.group_size, to.rows.size(), to.cols.size())));
    view.data = to.codes = piece.data;
    view.owner = piece.owner;
    start();
    return view;
  }
  const size_t code_bytes = Slabs::Align(row_bytes * static_cast<size_t>(to.rows.size()));
  const size_t scale_bytes = to.scale_rows() * to.ScaleBytes(to.cols.size());
  const size_t zero_bytes = to.scale_rows() * to.ZeroBytes(to.cols.size());
  const Slabs::Piece piece = in.slabs().Allocate(code_bytes + scale_bytes + zero_bytes);
  to.codes = piece.data;
  to.scales = piece.data + code_bytes;
  if (zero_bytes != 0) to.zeros = to.scales + scale_bytes;
  view.data = to.codes;
  view.scales = to.scales;
  view.zeros = to.zeros;
  view.owner = piece.owner;
  start();
  return view;
}

}  // namespace switchyard
