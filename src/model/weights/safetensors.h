// A checkpoint's directory of safetensors files (core/safetensors.h), mapped read-only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/regular_file.h"
#include "core/safetensors.h"

namespace switchyard {

// A tensor in its mapped file. `data` is valid as long as `owner` lives.
struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
  size_t num_bytes = 0;
  std::string_view file;  // name for messages; valid as long as `owner` lives
  std::shared_ptr<const void> owner;
};

enum class StoredNames : uint8_t;  // model/weights/stored_names.h

// A checkpoint directory: model.safetensors, or model.safetensors.index.json and the files its
// weight_map names. Tensors have the names of the model's family, which differ from those in some
// files. Immutable; files stay mapped as long as a tensor's owner lives. They must not
// change while they are mapped: a read past the end of a truncated file kills the process with
// SIGBUS.
class Checkpoint {
 public:
  // Maximum number of tensors in all files together.
  static constexpr size_t kMaxTensors = size_t{1} << 21;

  // Opens every file. Ignores tensors that the index assigns to another file. Throws Error if `dir`
  // has no checkpoint, if a shard is missing, not a regular file or outside the directory, or if it
  // lacks a tensor that the index assigns to it. Also throws ParseSafetensorsHeader's errors.
  explicit Checkpoint(const std::filesystem::path& dir);

  const StoredTensor* Find(std::string_view name) const;  // nullptr: absent
  // The tensor by its name in the files; nullptr: absent.
  const StoredTensor* FindStored(std::string_view name) const;
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  const std::filesystem::path& dir() const { return dir_; }

 private:
  void Rename();

  std::filesystem::path dir_;
  StoredNames names_{};
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// Returns the safetensors files of the checkpoint in `dir`, sorted by name, with their current size
// and modification time. Throws Checkpoint's errors about the index.
std::vector<FileStamp> WeightFiles(const std::filesystem::path& dir);

}  // namespace switchyard
