// Reads 4-bit integers with scales per group of columns. Int4Matrix documents the packing of each
// method. At the end of loading, this rank's shard is converted once: to panels, or to the rows of
// kInt4Group. Rows that are stored in this format already are used in place.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/weights/checkpoint_reader.h"
#include "model/weights/int4_matrix.h"
#include "model/weights/panel_packing.h"
#include "quant/panels.h"

namespace switchyard {
namespace {

constexpr int64_t kRowsOfJob = 256;

struct Int4Names {
  std::string codes, scales, zeros, order;
};

Int4Names NamesOf(const MatrixRequest& r) {
  const std::string module(ModuleOf(r));
  switch (r.scheme.packing) {
    case Packing::kPackedInt4:
      return {module + ".weight_packed", module + ".weight_scale", module + ".weight_zero_point",
              module + ".weight_g_idx"};
    case Packing::kSignedInt4:
      return {module + ".weight", module + ".weight_scale_inv", "", ""};
    case Packing::kModelOptInt4:
      return {module + ".weight", module + ".weight_scale", "", ""};
    default:  // GPTQ and AWQ
      return {module + ".qweight", module + ".scales", module + ".qzeros", module + ".g_idx"};
  }
}

void CheckPackedSizes(const MatrixRequest& r) {
  if (r.k % kInt4Word != 0 || r.n % kInt4Word != 0 || r.scheme.group_size % kInt4Word != 0) {
    throw Invalid(
        "config.json: {} gives tensor \"{}\" [{}, {}] in groups of {}; 4-bit weights need "
        "multiples of {}",
        r.keys, r.name, r.n, r.k, r.scheme.group_size, kInt4Word);
  }
}

// `codes` is null if a tensor is missing.
Int4Matrix FindMatrix(CheckpointReader& in, const MatrixRequest& r, const Int4Names& names) {
  const int64_t n = r.n, k = r.k;
  const int64_t g = r.scheme.group_size > 0 ? CeilDiv(k, r.scheme.group_size) : 1;
  Int4Matrix m{.packing = r.scheme.packing,
               .zeros_less_one = r.scheme.zeros_less_one,
               .n = n,
               .k = k,
               .groups = g};
  using Shape = std::vector<int64_t>;
  const auto find = [&](DType codes, const Shape& shape, const Shape& scales, const Shape& zeros) {
    m.codes = in.Find(names.codes, codes, shape, r.keys);
    m.scales = in.Find(names.scales, scales, "group_size");
    if (!zeros.empty()) m.zeros = in.Find(names.zeros, DType::kI32, zeros, "group_size");
    if (!m.scales || (!zeros.empty() && !m.zeros)) m.codes = nullptr;
  };
  const int64_t words = kInt4Word;
  switch (m.packing) {
    case Packing::kPackedInt4:
      find(DType::kI32, {n, k / words}, {n, g}, r.scheme.zeros ? Shape{n / words, g} : Shape{});
      break;
    case Packing::kGptq:
      find(DType::kI32, {k / words, n}, {g, n}, {g, n / words});
      break;
    case Packing::kAwq:
      find(DType::kI32, {k, n / words}, {g, n}, {g, n / words});
      break;
    case Packing::kSignedInt4:
      find(DType::kI8, {n, k / 2}, {n, g}, {});
      break;
    default:
      find(DType::kU8, {n / 2, k}, {n, g}, {});
      break;
  }
  if (m.scales && !IsPlain(m.scales->dtype)) {
    throw Invalid("{}: tensor \"{}\" is {}; want float32, bfloat16 or float16", m.scales->file,
                  names.scales, Name(m.scales->dtype));
  }
  return m;
}

// The group of each column, from g_idx. Empty if there is no g_idx, or if column j is in group
// j / group_size for all j.
std::vector<int32_t> ColumnGroups(CheckpointReader& in, const MatrixRequest& r, const Int4Matrix& m,
                                  const std::string& name) {
  if (name.empty() || r.scheme.group_size == 0 || !in.Has(name)) return {};
  const StoredTensor* t = in.Find(name, DType::kI32, {r.k}, r.keys);
  if (!in.read_data()) return {};
  std::vector<int32_t> groups(static_cast<size_t>(r.k));
  std::memcpy(groups.data(), t->data, t->num_bytes);
  bool in_order = true;
  for (int64_t j = 0; j < r.k; ++j) {
    if (groups[j] < 0 || groups[j] >= m.groups) {
      throw Invalid("{}: tensor \"{}\" puts column {} into group {} of {}", t->file, name, j,
                    groups[j], m.groups);
    }
    in_order &= groups[j] == j / r.scheme.group_size;
  }
  return in_order ? std::vector<int32_t>() : groups;
}

// Whether scales must be finite, and the name of their tensor for messages.
struct ScaleCheck {
  std::string name;
  bool wanted = false;
};

float ScaleOf(const Int4Matrix& m, int64_t row, int64_t group, const ScaleCheck& check) {
  const float scale = m.Scale(row, group);
  if (check.wanted && !std::isfinite(scale)) {
    throw Invalid(
        "{}: tensor \"{}\" has a scale that is {} at row {}, group {}; the file is damaged",
        m.scales->file, check.name, scale, row, group);
  }
  return scale;
}

// `factors` [k]: factors of the columns; undefined: none.
WeightView ExpandInt4(CheckpointReader& in, const MatrixRequest& r, const Int4Matrix& m,
                      const ScaleCheck& check, const std::vector<int32_t>& column_groups,
                      const Tensor& factors) {
  const int64_t group_size = r.scheme.group_size > 0 ? r.scheme.group_size : r.k;
  return Expand(in, r, [m, check, group_size, factors, column_groups](int64_t row, float* out) {
    // A word may hold eight rows; rows are read one by one nevertheless.
    std::vector<uint8_t> codes(static_cast<size_t>(m.k / 2));
    m.CopyCodes({row, row + 1}, {0, m.k}, codes.data());
    for (int64_t j = 0; j < m.k; ++j) {
      const int64_t group = column_groups.empty() ? j / group_size : column_groups[j];
      const int code = codes[j / 2] >> (j % 2 * 4) & 15;
      out[j] = static_cast<float>(code - m.Zero(row, group)) * ScaleOf(m, row, group, check);
      if (factors.defined()) out[j] *= factors.data<float>()[j];
    }
  });
}

// The part of the matrix that is converted: full groups, although the view may begin or end within
// a group. If a row is one group, the part may be any range of columns.
struct Int4Part {
  Range rows, cols, groups;
  int64_t group_size = 0;
};

Int4Part PartOf(const MatrixRequest& r) {
  const int64_t unit = r.scheme.group_size > 0 ? r.scheme.group_size : kInt4Word;
  Int4Part p{.rows = {r.row0 + r.rows.begin, r.row0 + r.rows.end},
             .cols = {r.cols.begin / unit * unit, std::min(r.k, CeilDiv(r.cols.end, unit) * unit)}};
  if (r.scheme.group_size > 0) {
    p.group_size = unit;
    p.groups = {p.cols.begin / unit, CeilDiv(p.cols.end, unit)};
  } else {
    p.group_size = std::max<int64_t>(p.cols.size(), kInt4Word);
    p.groups = {0, 1};
  }
  return p;
}

struct Converted {
  uint8_t* codes = nullptr;  // null: the stored codes are used in place
  float* scales = nullptr;
  uint8_t* zeros = nullptr;  // null: all zero points are 8
};

void ConvertRows(const Int4Matrix& m, const Int4Part& p, Range rows, const Converted& to,
                 const ScaleCheck& check) {
  const int64_t first = rows.begin - p.rows.begin;
  if (to.codes) m.CopyCodes(rows, p.cols, to.codes + first * p.cols.size() / 2);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t g = p.groups.begin; g < p.groups.end; ++g) {
      const int64_t at = (row - p.rows.begin) * p.groups.size() + g - p.groups.begin;
      to.scales[at] = ScaleOf(m, row, g, check);
      if (to.zeros) to.zeros[at] = m.Zero(row, g);
    }
  }
}

WeightView Convert(CheckpointReader& in, const MatrixRequest& r, const Int4Matrix& m,
                   const ScaleCheck& check) {
  const Int4Part p = PartOf(r);
  WeightView view{.format = WeightFormat::kInt4Group,
                  .data = m.codes->data,
                  .group_size = static_cast<int32_t>(p.group_size),
                  .activation = r.scheme.activation,
                  .stored_k = p.cols.size(),
                  .col0 = r.cols.begin - p.cols.begin,
                  .n = r.rows.size(),
                  .k = r.cols.size(),
                  .owner = m.codes->owner};
  if (!in.read_data()) return view;
  const bool in_place = m.packing == Packing::kPackedInt4 && p.cols.size() == m.k;
  const auto rows = static_cast<size_t>(p.rows.size());
  const size_t row_codes = in_place ? 0 : static_cast<size_t>(p.cols.size() / 2);
  const auto groups = static_cast<size_t>(p.groups.size());
  const bool zeros = !m.ZerosAreEight();
  const size_t row_bytes = row_codes + groups * (sizeof(float) + (zeros ? 1 : 0));
  const Slabs::Piece piece =
      in.slabs().Allocate(Slabs::Align(rows * row_codes) + rows * groups * 5);
  Converted to;
  if (in_place) {
    view.data = m.codes->data + p.rows.begin * m.k / 2;
    view.owner = BothOwners(m.codes->owner, piece.owner);
    in.Use(view, static_cast<const uint8_t*>(view.data), m.k / 2, 0, m.k / 2);
  } else {
    to.codes = piece.data;
    view.data = piece.data;
    view.owner = piece.owner;
  }
  to.scales = reinterpret_cast<float*>(piece.data + Slabs::Align(rows * row_codes));
  view.scales = to.scales;
  if (zeros) to.zeros = reinterpret_cast<uint8_t*>(to.scales + rows * groups);
  view.zeros = to.zeros;
  for (int64_t first = p.rows.begin; first < p.rows.end; first += kRowsOfJob) {
    const Range part = {first, std::min(p.rows.end, first + kRowsOfJob)};
    in.Later(static_cast<size_t>(part.size()) * row_bytes,
             [m, p, part, to, check] { ConvertRows(m, p, part, to, check); });
  }
  return view;
}

// Packs `rows` of the part into panels of `format`, whose column 0 is column p.cols.begin.
void PackRows(const Int4Matrix& m, const Int4Part& p, WeightFormat format, int64_t width,
              Range rows, const ScaleCheck& check, uint8_t* panels) {
  const bool zeros =
      format == WeightFormat::kInt4ZeroPanels || format == WeightFormat::kInt4HalfZeroPanels;
  const bool half = m.scales->dtype == DType::kF16;
  const int64_t row_codes = p.cols.size() / 2, groups_of_part = kPanelColumns / p.group_size;
  std::vector<uint8_t> codes(static_cast<size_t>(rows.size() * row_codes));
  m.CopyCodes(rows, p.cols, codes.data());
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint8_t* of_row = codes.data() + (row - rows.begin) * row_codes;
    for (int64_t part = 0; part * kPanelColumns < width; ++part) {
      PanelRow to{};
      const int64_t at = part * kPanelColumns / 2;
      std::memcpy(to.codes, of_row + at,
                  static_cast<size_t>(std::min(row_codes - at, kPanelColumns / 2)));
      const int64_t first = p.groups.begin + part * groups_of_part;
      const int64_t count = std::min(p.groups.end - first, groups_of_part);
      for (int64_t g = 0; g < count; ++g) {
        const float scale = ScaleOf(m, row, first + g, check);  // exact in its stored type
        const uint16_t bits = half ? ToF16(scale).bits : ToBF16(scale).bits;
        std::memcpy(to.scales + 2 * g, &bits, sizeof bits);
        if (zeros) to.scales[2 * groups_of_part + g] = m.Zero(row, first + g);
      }
      PutPanelRow(format, p.group_size, width, row - p.rows.begin, part, to, panels);
    }
  }
}

MappedRange BytesOf(const StoredTensor& t) { return {t.data, t.data + t.num_bytes}; }

// Panels hold scales as they are stored, so they must have 16 bits. `panels`: panel format by
// config.json; zero points that are all 8 are not stored, whatever it specifies.
WeightView ConvertToPanels(CheckpointReader& in, const MatrixRequest& r, const Int4Matrix& m,
                           const ScaleCheck& check, WeightFormat panels) {
  const Int4Part p = PartOf(r);
  WeightFormat format = panels;
  if (in.read_data())
    format = m.ZerosAreEight() ? WeightFormat::kInt4Panels : WeightFormat::kInt4ZeroPanels;
  if (m.scales->dtype == DType::kF16) format = WithHalfScales(format);
  std::vector<MappedRange> read = {BytesOf(*m.codes), BytesOf(*m.scales)};
  if (m.zeros) read.push_back(BytesOf(*m.zeros));
  const int64_t width = r.cols.size();
  return PackLater(in,
                   {.format = format,
                    .data = m.codes->data,
                    .group_size = static_cast<int32_t>(p.group_size),
                    .activation = r.scheme.activation,
                    .stored_k = width,
                    .n = r.rows.size(),
                    .k = width,
                    .owner = m.codes->owner},
                   std::move(read), [m, p, format, width, check](Range rows, uint8_t* to) {
                     const Range stored = {p.rows.begin + rows.begin, p.rows.begin + rows.end};
                     PackRows(m, p, format, width, stored, check, to);
                   });
}

// compressed-tensors stores the matrix's shape next to its packed form.
void CheckStoredShape(CheckpointReader& in, const MatrixRequest& r) {
  const std::string name = fmt::format("{}.weight_shape", ModuleOf(r));
  const StoredTensor* t = in.Optional(name);
  if (!t || !in.read_data()) return;
  if (t->dtype != DType::kI64 || t->shape != std::vector<int64_t>{2}) {
    throw Invalid("{}: tensor \"{}\" is {} {}; want int64 [2]", t->file, name, Name(t->dtype),
                  ShapeString(t->shape));
  }
  int64_t noted[2];
  std::memcpy(noted, t->data, sizeof noted);
  if (noted[0] != r.n || noted[1] != r.k) {
    throw Invalid("{}: tensor \"{}\" holds [{}, {}]; config.json requires [{}, {}] (by {})",
                  t->file, name, noted[0], noted[1], r.n, r.k, r.keys);
  }
}

}  // namespace

WeightView ReadInt4(CheckpointReader& in, const MatrixRequest& r) {
  RejectStackedExperts(r, nullptr);
  CheckPackedSizes(r);
  const Int4Names names = NamesOf(r);
  const Int4Matrix m = FindMatrix(in, r, names);
  if (!m.codes) return {};
  if (m.packing == Packing::kPackedInt4) CheckStoredShape(in, r);
  const ScaleCheck check{names.scales, in.check_values()};
  const std::vector<int32_t> order = ColumnGroups(in, r, m, names.order);
  if (!order.empty() || (r.scheme.act_order && !in.read_data())) {
    in.RecordDequantized("the columns of their groups are not contiguous (desc_act, actorder)");
    return ExpandInt4(in, r, m, check, order, {});
  }
  if (m.packing == Packing::kModelOptInt4) {
    const auto factors = InputFactors(in, r);
    if (factors) return ExpandInt4(in, r, m, check, {}, *factors);
  }
  const WeightFormat format = ImpliedFormat(in.config(), r);
  const bool panels = HasPanels(format) && m.scales->dtype != DType::kF32;
  WeightView view = panels ? ConvertToPanels(in, r, m, check, format) : Convert(in, r, m, check);
  AddInputScale(in, r, &view);
  return view;
}

}  // namespace switchyard
