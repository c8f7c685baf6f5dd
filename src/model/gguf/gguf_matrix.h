// A matrix of a GGUF file, with rows in the order of a Hugging Face checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/gguf_files.h"
#include "model/weights/shard.h"

namespace switchyard {

// Rows of blocks at `data`. Reading is thread-safe.
struct GgufMatrix {
  const GgmlType* type = nullptr;
  const uint8_t* data = nullptr;
  int64_t k = 0;         // columns
  int64_t n = 0;         // rows
  int64_t pairs_of = 0;  // GgufPlace::pairs_of; 0: stored rows are the checkpoint's
  std::string name;      // for messages
  std::shared_ptr<const MappedFile> file;

  int64_t row_bytes() const { return k / type->block_size * type->block_bytes; }
  int64_t StoredRow(int64_t row) const;
  const uint8_t* Row(int64_t row) const { return data + StoredRow(row) * row_bytes(); }
  // Writes the k numbers of a row. Throws Error if `check` is set and one is not finite.
  void Read(int64_t row, bool check, float* out) const;
};

// kv_b_proj of latent attention. For each head, it has `nope` rows of keys, then `v` rows of
// values, with `rank` columns.
struct GgufLatent {
  GgufMatrix keys;    // [heads · rank, nope], transposed by head
  GgufMatrix values;  // [heads · v, rank]
  int64_t nope = 0, v = 0, rank = 0;

  // Writes the rows in `rows` to out [number of rows, rank].
  void Read(Range rows, bool check, float* out) const;
};

}  // namespace switchyard
