// Writes one safetensors file (https://huggingface.co/docs/safetensors).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/safetensors.h"

namespace switchyard {

// The first bytes of a file: the length of the header, and the header. `begin` and `end` of the
// entries: offsets from the end of the returned bytes.
std::string SafetensorsHead(const TensorEntries& tensors,
                            const std::map<std::string, std::string>& metadata);

// Collects tensors and writes them in one call. A value type.
class SafetensorsWriter {
 public:
  // Adds a tensor of int32 and copies its data.
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<int32_t>& data);
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<int64_t>& data);
  // Adds a tensor without a copy: `data` must hold the whole tensor, row-major, until Write
  // returns.
  void AddView(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data);
  void SetMetadata(const std::string& key, std::string value) { metadata_[key] = std::move(value); }

  bool empty() const { return entries_.empty(); }
  uint64_t data_bytes() const;  // size of all tensors, without the header

  // Writes to a temporary file, syncs it, and renames it to `path`, so that readers of `path`
  // always see a complete file. Error kResource names the file and the reason; no partial file
  // remains.
  void Write(const std::filesystem::path& path) const;

 private:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::string bytes;           // copied data
    const void* view = nullptr;  // data that is not copied; null: `bytes`
    size_t size = 0;             // bytes
  };
  void Copy(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data,
            size_t size);

  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace switchyard
