#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr uintmax_t kMaxIndexBytes = 256 << 20;

struct Mapping {
  std::shared_ptr<const uint8_t> data;
  size_t size = 0;
};

// The file may be truncated while it is mapped; a read past its end then kills the process.
// Checkpoints are assumed not to change while they are served.
Mapping MapFile(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw NotFound("{}: {}", path.string(), std::strerror(errno));
  const auto close_fd = std::shared_ptr<void>(nullptr, [fd](void*) { close(fd); });
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    throw Invalid("{}: not a regular file", path.string());
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) throw Invalid("{}: empty; it is truncated", path.string());
  void* p = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw Resource("{}: cannot map: {}", path.string(), std::strerror(errno));
  return {{static_cast<const uint8_t*>(p),
           [size](const uint8_t* q) { munmap(const_cast<uint8_t*>(q), size); }},
          size};
}

using WeightMap = std::map<std::string, std::string>;

// Adds the file's tensors, except those that the index assigns to another file: reused shards and
// overlays contain obsolete tensors. `weight_map`: null without an index.
void AddFile(const fs::path& path, const WeightMap* weight_map,
             std::map<std::string, StoredTensor, std::less<>>* tensors) {
  const std::string file = path.filename().string();
  const Mapping map = MapFile(path);
  for (const auto& [name, entry] :
       ParseSafetensorsHeader({map.data.get(), map.size}, map.size, path.string())) {
    if (weight_map != nullptr) {
      const auto home = weight_map->find(name);
      if (home != weight_map->end() && home->second != file) continue;
    }
    const StoredTensor tensor{
        entry.dtype,   entry.shape, map.data.get() + entry.begin, entry.end - entry.begin,
        path.string(), map.data};
    if (const auto [it, added] = tensors->emplace(name, tensor); !added) {
      throw Invalid("tensor \"{}\" is in {} and in {}", name, it->second.file, path.string());
    }
  }
}

WeightMap ReadWeightMap(const fs::path& path) {
  std::error_code error;
  if (fs::file_size(path, error) > kMaxIndexBytes || error) {
    throw Invalid("{}: unreadable, or larger than {} bytes", path.string(), kMaxIndexBytes);
  }
  std::ifstream file(path, std::ios::binary);
  json index;
  try {
    index = json::parse(file);
  } catch (const json::exception& e) {
    throw Invalid("{}: not JSON: {}", path.string(), e.what());
  }
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty()) {
    throw Invalid("{}: weight_map is missing or not an object", path.string());
  }
  WeightMap out;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) {
      throw Invalid("{}: weight_map[\"{}\"] is not a file name", path.string(), name);
    }
    out.emplace(name, shard.get<std::string>());
  }
  return out;
}

std::set<std::string> ShardsOf(const WeightMap& weight_map, const fs::path& index_path) {
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  for (const std::string& shard : shards) {
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      throw Invalid("{}: weight_map names \"{}\", which is not a file of this directory",
                    index_path.string(), shard);
    }
    if (!fs::exists(index_path.parent_path() / shard)) {
      throw NotFound("{}: weight_map names {}, which does not exist; download it again",
                     index_path.string(), shard);
    }
  }
  return shards;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& dir) : dir_(dir) {
  const fs::path index_path = dir / kIndexFile;
  if (!fs::exists(index_path)) {
    if (!fs::exists(dir / kSingleFile)) {
      throw NotFound("{}: neither {} nor {} exists; want a safetensors checkpoint", dir.string(),
                     kSingleFile, kIndexFile);
    }
    AddFile(dir / kSingleFile, nullptr, &tensors_);
    return;
  }
  const auto weight_map = ReadWeightMap(index_path);
  for (const std::string& shard : ShardsOf(weight_map, index_path)) {
    AddFile(dir / shard, &weight_map, &tensors_);
  }
  for (const auto& [name, shard] : weight_map) {
    const StoredTensor* tensor = Find(name);
    if (!tensor || tensor->file != (dir / shard).string()) {
      throw Invalid("{}: weight_map has tensor \"{}\" in {}, which lacks it", index_path.string(),
                    name, shard);
    }
  }
}

const StoredTensor* Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace switchyard
