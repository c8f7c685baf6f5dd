#include "model/gguf/gguf_matrix.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/error.h"
#include "quant/ggml_blocks.h"

namespace switchyard {

int64_t GgufMatrix::StoredRow(int64_t row) const {
  if (pairs_of == 0) return row;
  const int64_t size = n / pairs_of, half = size / 2, in_head = row % size;
  return row - in_head + in_head % half * 2 + in_head / half;
}

void GgufMatrix::Read(int64_t row, bool check, float* out) const {
  DequantizeGgml(*type, Row(row), k, out);
  if (!check) return;
  const std::span<const float> values(out, static_cast<size_t>(k));
  const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  if (bad != values.end())
    throw Invalid(
        "{}: tensor \"{}\" has a weight that is {} at row {}, column {}; the file is "
        "damaged",
        file->name, name, *bad, StoredRow(row), bad - values.begin());
}

void GgufLatent::Read(Range rows, bool check, float* out) const {
  const int64_t per_head = nope + v;
  // Keys of the last head that was read, transposed: [rank, nope].
  std::vector<float> head_keys;
  int64_t head_of_keys = -1;
  for (int64_t row = rows.begin; row < rows.end; ++row, out += rank) {
    const int64_t head = row / per_head, in_head = row % per_head;
    if (in_head >= nope) {
      values.Read(head * v + in_head - nope, check, out);
      continue;
    }
    if (head_of_keys != head) {
      head_keys.resize(static_cast<size_t>(rank * nope));
      for (int64_t j = 0; j < rank; ++j)
        keys.Read(head * rank + j, check, head_keys.data() + j * nope);
      head_of_keys = head;
    }
    for (int64_t j = 0; j < rank; ++j) out[j] = head_keys[static_cast<size_t>(j * nope + in_head)];
  }
}

}  // namespace switchyard
