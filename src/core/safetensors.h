// The header of a safetensors file: https://huggingface.co/docs/safetensors — 8 bytes of header
// length (little endian), a JSON header {name: {dtype, shape, data_offsets}}, then the bytes of the
// tensors.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
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

}  // namespace switchyard
