// Named integer arrays in a JSON, safetensors or PyTorch file: recorded loads, placements.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
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

// The format is detected from the first bytes of the file, not from its name. Single-threaded. From
// safetensors and PyTorch files (torch_file.h), reads only the header and the requested tensors.
class ArrayFile {
 public:
  // Error kNotFound if the file does not exist, kInvalid if it has none of the formats or is
  // truncated. Both messages start with the file name.
  explicit ArrayFile(const std::filesystem::path& path);
  // Reads JSON text; `name` replaces the file name in messages.
  ArrayFile(const std::string& text, std::string name);

  const std::string& name() const { return name_; }
  bool Has(const std::string& array) const;
  // Returns the names of the arrays as a text for messages: "the file has a, b".
  std::string NamesOfArrays() const;
  // Accepts nested lists of equal lengths, at most 4 deep, or a tensor of int16, int32 or int64.
  // Error kInvalid if the array is missing, has another type, is ragged or has values outside
  // int32. The message names file and array; for a missing array it lists the existing ones.
  IntArray Get(const std::string& array) const;
  // The parsed JSON; null if the file is safetensors or PyTorch.
  const nlohmann::json* json() const { return std::get_if<nlohmann::json>(&content_); }

 private:
  void ParseJson(const std::string& text);
  IntArray GetTensor(const std::string& array, const TensorEntry& entry) const;

  std::string name_;
  std::variant<nlohmann::json, TensorEntries> content_;
  std::set<std::string> scattered_;  // tensors of a PyTorch file that are not contiguous
};

// Formats a value for messages; for a list or an object, only its type.
std::string DescribeValue(const nlohmann::json& value);

// Token counts for each expert. `array` (logical_count in the recorder's files) has the shape
// [steps, layers, experts] or [layers, experts]. Error kInvalid, which names file and array, if the
// shape is another one, the array is empty or a count is negative. Also throws the errors of
// ArrayFile.
LoadHistory ReadLoads(const ArrayFile& file, const std::string& array = "logical_count");

}  // namespace switchyard
