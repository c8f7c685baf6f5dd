// Named integer arrays in a JSON or safetensors file: recorded loads, placements.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "core/safetensors.h"
#include "eplb/types.h"

namespace switchyard {

struct IntArray {
  std::vector<int64_t> shape;
  std::vector<int32_t> values;  // [product of shape]
};

// The format is detected from the first bytes of the file, not from its name. Single-threaded. Of a
// safetensors file only the header and the requested tensors are read.
class ArrayFile {
 public:
  // Error kNotFound if the file does not exist, kInvalid if it has neither format or is truncated.
  // Both messages start with the file name.
  explicit ArrayFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  bool Has(const std::string& array) const;
  // Accepts nested lists of equal lengths, at most 4 deep, or a tensor of int16, int32 or int64.
  // Error kInvalid names file and array: missing, of another type, ragged, or outside int32.
  IntArray Get(const std::string& array) const;
  // The parsed JSON; null for a safetensors file.
  const nlohmann::json* json() const { return std::get_if<nlohmann::json>(&content_); }

 private:
  IntArray GetTensor(const std::string& array, const TensorEntry& entry) const;

  std::string name_;
  std::variant<nlohmann::json, TensorEntries> content_;
};

// Formats a value for messages. Of a list or object only the type is named.
std::string DescribeValue(const nlohmann::json& value);

// Token counts for each expert. `array` (logical_count in the recorder's files) has the shape
// [steps, layers, experts] or [layers, experts]. Error kInvalid names file and array: errors of
// ArrayFile, another shape, an empty array, a negative count.
LoadHistory ReadLoads(const ArrayFile& file, const std::string& array = "logical_count");

}  // namespace switchyard
