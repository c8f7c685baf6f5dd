// Metadata of a GGUF file under the keys of its architecture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/gguf_files.h"

namespace switchyard {

// Reads keys "ARCHITECTURE.…". Borrows the files. Errors name the file and key: a required key that
// is missing, a value of another type.
class GgufKeys {
 public:
  // Error if general.architecture is missing.
  explicit GgufKeys(const GgufFiles& files);

  const GgufFiles& files() const { return files_; }
  const std::string& architecture() const { return architecture_; }
  std::string Key(std::string_view key) const;

  bool Has(std::string_view key) const { return files_.Has(Key(key)); }
  int64_t Int(std::string_view key) const;
  int64_t IntOr(std::string_view key, int64_t fallback) const {
    return files_.Int(Key(key)).value_or(fallback);
  }
  double NumberOr(std::string_view key, double fallback) const {
    return files_.Number(Key(key)).value_or(fallback);
  }
  bool BoolOr(std::string_view key, bool fallback) const {
    return files_.Bool(Key(key)).value_or(fallback);
  }
  // Throws the error that the value of a key is not supported.
  [[noreturn]] void Refuse(std::string_view key, std::string_view value) const;

  // Layers of the model, without multi-token prediction layers at the end.
  int64_t Layers() const;
  bool HasTensor(int64_t layer, std::string_view name) const;
  // Size of a dimension of the tensor with this name in the first layer that has it; 0: no layer
  // has it.
  int64_t SizeOf(std::string_view name, size_t dimension) const;

 private:
  const GgufFiles& files_;
  std::string architecture_;
};

}  // namespace switchyard
