// One safetensors file, mapped read-only, and a checkpoint's directory of them.
// Format: https://huggingface.co/docs/safetensors — 8 bytes of header length (little endian), a
// JSON header {name: {dtype, shape, data_offsets}}, then the bytes of the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace switchyard {

struct TensorEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes of the file
};

// Ordered by name. Heterogeneous lookup.
using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

// Reads the header of a file of `file_size` bytes whose first bytes are `head` (the length, and all
// of the header where the file holds it). Error kInvalid naming `file` and the tensor: a header
// outside the file, over 100 MB or not JSON, a duplicate or malformed entry, an unknown dtype,
// offsets outside the file, overlapping, negative or in contradiction to dtype and shape. Bytes
// that no tensor claims are allowed: they harm nobody.
TensorEntries ParseSafetensorsHeader(std::span<const uint8_t> head, uint64_t file_size,
                                     const std::string& file);

// A tensor where it lies. `data` lives as long as `owner`.
struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
  size_t num_bytes = 0;
  std::string file;  // for messages
  std::shared_ptr<const void> owner;
};

// A checkpoint directory: model.safetensors, or model.safetensors.index.json and the files its
// weight_map names. Immutable; files stay mapped as long as a tensor's owner lives.
class Checkpoint {
 public:
  // Opens every file. Error: no checkpoint in `dir`, a shard that is missing or named outside the
  // directory, a tensor that the index promises and its file lacks, and all of
  // ParseSafetensorsHeader's.
  explicit Checkpoint(const std::filesystem::path& dir);

  const StoredTensor* Find(std::string_view name) const;  // nullptr: absent
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const std::filesystem::path& dir() const { return dir_; }

 private:
  std::filesystem::path dir_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace switchyard
