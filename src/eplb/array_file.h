// Arrays of whole numbers by name, in a JSON or safetensors file: recorded loads, placements.
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

// What the file is its first bytes say, not its name. One thread; a safetensors file is read as far
// as it is asked for.
class ArrayFile {
 public:
  // Error kNotFound where there is none, kInvalid where it is neither or is truncated; both begin
  // with its name.
  explicit ArrayFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  bool Has(const std::string& array) const;
  // Lists in lists of equal lengths, at most 4 deep, or a tensor of int16, int32 or int64. Error
  // kInvalid names file and array: absent, of another kind, ragged, a value that is no int32.
  IntArray Get(const std::string& array) const;
  // The file's JSON; null of a safetensors file.
  const nlohmann::json* json() const { return std::get_if<nlohmann::json>(&content_); }

 private:
  IntArray GetTensor(const std::string& array, const TensorEntry& entry) const;

  std::string name_;
  std::variant<nlohmann::json, TensorEntries> content_;
};

// A value for messages: a list or object is only said to be one.
std::string DescribeValue(const nlohmann::json& value);

// Tokens of each expert: `array` (the recorder's is logical_count) is [steps, layers, experts] or
// [layers, experts]. Error kInvalid names file and array: ArrayFile's, another shape, none at all,
// a negative count.
LoadHistory ReadLoads(const ArrayFile& file, const std::string& array = "logical_count");

}  // namespace switchyard
