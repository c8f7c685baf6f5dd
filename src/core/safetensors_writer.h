// Writes one safetensors file (https://huggingface.co/docs/safetensors).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace switchyard {

// Tensors are added and written in one go. A value.
class SafetensorsWriter {
 public:
  // Copies the numbers.
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<int32_t>& data);
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<int64_t>& data);
  // Borrows them: `data` holds the whole tensor, row-major, until Write has returned.
  void AddView(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data);
  void SetMetadata(const std::string& key, std::string value) { metadata_[key] = std::move(value); }

  bool empty() const { return entries_.empty(); }
  uint64_t data_bytes() const;  // of all tensors, without the header

  // Under another name first, and on the disk before it gets its own, so that whoever sees `path`
  // sees all of it. Error kResource names the file and the reason; nothing is left behind then.
  void Write(const std::filesystem::path& path) const;

 private:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::string bytes;           // where the numbers were copied
    const void* view = nullptr;  // where they were not
    size_t size = 0;             // bytes
  };
  void Copy(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data,
            size_t size);

  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace switchyard
