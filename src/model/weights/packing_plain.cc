// Reader of matrices in float32, bfloat16 or float16.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "model/weights/checkpoint_reader.h"

namespace switchyard {
namespace {

// Rows and columns of one tile. A tile's part of a stored row is a few cache lines, and the lines
// that are written, one for each row, stay in L1.
constexpr int64_t kTileRows = 64;
constexpr int64_t kJobRows = 512;  // rows of one deferred job

// Writes rows [first, end) of the request. T: an integer of the element's size. `from`: the stored
// matrix [k, n]. `to`: row r.rows.begin of the result.
template <typename T>
void TransposeRows(const MatrixRequest& r, const uint8_t* from, int64_t first, int64_t end,
                   uint8_t* to) {
  const int64_t width = r.cols.size();
  for (int64_t row = first; row < end; row += kTileRows) {
    const int64_t last = std::min(end, row + kTileRows);
    for (int64_t col = 0; col < width; ++col) {
      const uint8_t* stored = from + (r.cols.begin + col) * r.n * sizeof(T);
      for (int64_t i = row; i < last; ++i)
        std::memcpy(to + ((i - r.rows.begin) * width + col) * sizeof(T),
                    stored + (r.row0 + i * r.row_step) * sizeof(T), sizeof(T));
    }
  }
}

// Kernels read rows along k. So this rank's shard of a matrix that is stored as [k, n] (gpt-oss in
// bfloat16, Llama 4) is transposed once.
WeightView Transpose(CheckpointReader& in, const MatrixRequest& r, const StoredTensor& t) {
  MatrixRequest part = r;
  part.rows = {0, r.rows.size()};
  part.cols = {0, r.cols.size()};
  part.k = r.cols.size();
  part.row0 = 0;
  part.row_step = 1;
  const WeightFormat format = PlainFormat(t.dtype);
  if (!in.read_data()) return StoredView(part, format, t.data, t.owner);
  const size_t size = SizeOf(t.dtype);
  const Slabs::Piece piece =
      in.slabs().Allocate(static_cast<size_t>(r.rows.size() * r.cols.size()) * size);
  const uint8_t* from = t.data + r.expert * r.n * r.k * size;
  for (int64_t first = r.rows.begin; first < r.rows.end; first += kJobRows) {
    const int64_t end = std::min(r.rows.end, first + kJobRows);
    in.Later(
        static_cast<size_t>((end - first) * r.cols.size()) * size,
        [r, from, first, end, size, to = piece.data, owner = BothOwners(piece.owner, t.owner)] {
          if (size == sizeof(uint16_t)) return TransposeRows<uint16_t>(r, from, first, end, to);
          TransposeRows<uint32_t>(r, from, first, end, to);
        });
  }
  return StoredView(part, format, piece.data, piece.owner);
}

// Copies the rows of a reduced head, so that the ones between them are not read.
WeightView Gather(CheckpointReader& in, const MatrixRequest& r, const StoredTensor& t) {
  WeightView view{.format = PlainFormat(t.dtype),
                  .data = t.data,
                  .activation = r.scheme.activation,
                  .stored_k = r.cols.size(),
                  .n = r.rows.size(),
                  .k = r.cols.size(),
                  .owner = t.owner};
  const auto size = static_cast<int64_t>(SizeOf(t.dtype));
  const auto row_bytes = static_cast<size_t>(r.cols.size() * size);
  if (!in.read_data() || view.n == 0 || row_bytes == 0) return view;
  const Slabs::Piece piece = in.slabs().Allocate(row_bytes * static_cast<size_t>(view.n));
  view.data = piece.data;
  view.owner = piece.owner;
  for (int64_t first = 0; first < view.n; first += kJobRows) {
    const int64_t end = std::min(view.n, first + kJobRows);
    in.Later(row_bytes * static_cast<size_t>(end - first),
             [r, first, end, size, row_bytes, from = t.data, to = piece.data,
              owner = BothOwners(piece.owner, t.owner)] {
               for (int64_t i = first; i < end; ++i)
                 std::memcpy(to + static_cast<size_t>(i) * row_bytes,
                             from + (r.StoredRow(r.rows.begin + i) * r.k + r.cols.begin) * size,
                             row_bytes);
             });
  }
  return view;
}

}  // namespace

const StoredTensor* FindPlain(CheckpointReader& in, const MatrixRequest& r) {
  const StoredTensor* t = in.Find(r.name, MatrixShape(r), r.keys);
  if (t && !IsPlain(t->dtype)) {
    throw Invalid(
        "{}: tensor \"{}\" is {} but config.json has no quantization_config for it; want float32, "
        "bfloat16 or float16",
        t->file, r.name, Name(t->dtype));
  }
  return t;
}

WeightView ReadPlain(CheckpointReader& in, const MatrixRequest& r) {
  const StoredTensor* t = FindPlain(in, r);
  if (!t) return {};
  MatrixRequest plain = r;
  // Only weights stored in bfloat16 take bfloat16 rows.
  const bool halves =
      t->dtype == DType::kBF16 && r.scheme.activation == ActivationFormat::kBFloat16;
  plain.scheme.activation = halves ? ActivationFormat::kBFloat16 : ActivationFormat::kNone;
  if (r.transposed) return Transpose(in, plain, *t);
  if (!r.picked.empty()) return Gather(in, plain, *t);
  const auto size = static_cast<int64_t>(SizeOf(t->dtype));
  const uint8_t* data = t->data + r.expert * r.n * r.k * size;
  WeightView view = StoredView(plain, PlainFormat(t->dtype), data, t->owner);
  in.Use(view, data, r.k * size, r.cols.begin * size, r.cols.end * size);
  return view;
}

}  // namespace switchyard
