// A model in GGUF files: one file, or splits NAME-00001-of-0000N.gguf.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/gguf.h"
#include "core/regular_file.h"

namespace switchyard {

// The GGUF file that `path` names: `path` itself if its name ends in ".gguf" and it is not a
// directory, or the single model in a directory without config.json (its first split; files
// mmproj-*.gguf are skipped). nullopt: `path` is not a GGUF model. Error kInvalid if a directory
// has several models.
std::optional<std::filesystem::path> FindGguf(const std::filesystem::path& path);

// All files of the model that `file` belongs to, in split order. Derives the names from `file` and
// opens no file.
std::vector<std::filesystem::path> GgufSplits(const std::filesystem::path& file);

// The mapped files of one model. Immutable; any thread may use it.
class GgufFiles {
 public:
  struct Tensor {
    const GgmlType* type = nullptr;
    std::vector<int64_t> shape;     // row-major
    const uint8_t* data = nullptr;  // valid as long as `file` lives
    std::shared_ptr<const MappedFile> file;
  };

  // Opens all splits. Throws the errors of ParseGgufHeader and of RegularFile. Error kInvalid if a
  // split has another number in its metadata, if a tensor is in two splits, or if the number of
  // tensors differs from that in the first split.
  explicit GgufFiles(const std::filesystem::path& file);

  const std::string& name() const { return name_; }           // name of the first file
  const GgufMetadata& metadata() const { return metadata_; }  // metadata of the first file
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }
  const Tensor* Find(std::string_view tensor) const;  // nullptr: absent

  // Values of the metadata. Errors name the key if the value has another type or is out of range.
  bool Has(std::string_view key) const { return metadata_.contains(key); }
  std::optional<int64_t> Int(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;  // also of an integer
  std::optional<bool> Bool(std::string_view key) const;
  const std::string* String(std::string_view key) const;                // nullptr: absent
  const std::vector<std::string>* Strings(std::string_view key) const;  // nullptr: absent
  const std::vector<int64_t>* Ints(std::string_view key) const;         // nullptr: absent
  const std::vector<double>* Numbers(std::string_view key) const;       // nullptr: absent

 private:
  template <typename T>
  const T* Get(std::string_view key, std::string_view wanted) const;

  std::string name_;
  GgufMetadata metadata_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace switchyard
