// Header of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic,
// version, counts, metadata (key, type, value), tensor infos (name, sizes, type, offset), then
// aligned data.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace switchyard {

// A storage type of ggml: rows of blocks. A block holds `block_size` consecutive elements of a row
// in `block_bytes` bytes.
struct GgmlType {
  uint32_t id = 0;
  std::string_view name;  // "Q4_K"
  int64_t block_size = 1;
  int64_t block_bytes = 0;
};

// Ids of the types that Switchyard reads (quant/ggml_blocks.h). FindGgmlType knows all types.
enum GgmlTypeId : uint32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ8_0 = 8,
  kGgmlQ4_K = 12,
  kGgmlQ5_K = 13,
  kGgmlQ6_K = 14,
  kGgmlIQ4_XS = 23,
  kGgmlBF16 = 30,
  kGgmlMXFP4 = 39,
};

// The type with this id; nullptr if the id is unknown.
const GgmlType* FindGgmlType(uint32_t id);

// A value of the metadata. Integers of all widths are int64. A float32 becomes the double of its
// shortest decimal form: 1e-6f becomes 1e-6. Floats in arrays are converted exactly.
using GgufValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufTensor {
  const GgmlType* type = nullptr;
  std::vector<int64_t> shape;   // row-major; the file stores the sizes in reverse order
  uint64_t begin = 0, end = 0;  // byte offsets in the file
};

struct GgufHeader {
  GgufMetadata metadata;
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

inline constexpr size_t kMaxGgufTensors = size_t{1} << 20;

// Parses the header of a file whose bytes are `file`; versions 2 and 3, little endian. Throws Error
// kInvalid that names `name` and the key or tensor for:
//   - another magic or version, big-endian files
//   - a header or tensor that ends outside the file, counts and lengths that the file cannot hold
//   - a key or tensor that appears twice, an unknown type, arrays of arrays
//   - sizes that overflow or do not fill whole blocks, offsets that are not aligned, overlaps
// Time and memory are linear in the header.
GgufHeader ParseGgufHeader(std::span<const uint8_t> file, const std::string& name);

}  // namespace switchyard
