// Reader of matrices in float32, bfloat16 or float16.
#include <cstring>

#include "core/error.h"
#include "model/weights/checkpoint_reader.h"

namespace switchyard {
namespace {

// Kernels read rows along k. So this rank's shard of a matrix that is stored as [k, n] (gpt-oss in
// bfloat16) is transposed once.
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
  uint8_t* to = piece.data;
  const uint8_t* from = t.data + r.expert * r.n * r.k * size;
  for (int64_t row = r.rows.begin; row < r.rows.end; ++row) {
    const int64_t stored_row = r.row0 + row * r.row_step;
    for (int64_t col = r.cols.begin; col < r.cols.end; ++col, to += size) {
      std::memcpy(to, from + (col * r.n + stored_row) * size, size);
    }
  }
  return StoredView(part, format, piece.data, piece.owner);
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
  const auto size = static_cast<int64_t>(SizeOf(t->dtype));
  const uint8_t* data = t->data + r.expert * r.n * r.k * size;
  WeightView view = StoredView(plain, PlainFormat(t->dtype), data, t->owner);
  in.Use(view, data, r.k * size, r.cols.begin * size, r.cols.end * size);
  return view;
}

}  // namespace switchyard
