// Header of a safetensors file (https://huggingface.co/docs/safetensors): 8 bytes of header length
// (little endian), a JSON header {name: {dtype, shape, data_offsets}}, then the tensor data.
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
  uint64_t begin = 0, end = 0;  // byte offsets in the file
};

// Entries by tensor name. Lookups accept string views.
using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;

// Maximum number of tensors in one file: several times the number in the largest checkpoints.
inline constexpr size_t kMaxSafetensorsTensors = size_t{1} << 20;

// Parses the header of a file of `file_size` bytes. `head`: the first bytes of the file, at least
// the length and the whole header. Throws Error kInvalid that names `file` and the tensor for:
//   - a header outside the file, over 100 MB, or not JSON; more than `max_tensors`
//   - a duplicate or malformed entry, or an unknown dtype
//   - offsets outside the file, overlapping, negative, or inconsistent with dtype and shape
// Bytes that belong to no tensor are allowed. Time and memory are linear. The memory is that of the
// result plus the longest string of the header.
TensorEntries ParseSafetensorsHeader(std::span<const uint8_t> head, uint64_t file_size,
                                     const std::string& file,
                                     size_t max_tensors = kMaxSafetensorsTensors);

}  // namespace switchyard
