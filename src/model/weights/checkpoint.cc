#include <algorithm>
#include <optional>
#include <utility>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/gguf_files.h"
#include "core/regular_file.h"
#include "model/weights/safetensors.h"
#include "model/weights/stored_names.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 256 << 20;

// The weight_map of an index: tensors and their files. Stores each file name once.
struct WeightMap {
  // Number of the tensor's file in `shards`; nullopt if the index does not list the tensor.
  std::optional<uint32_t> ShardOf(std::string_view tensor) const {
    const auto it = std::ranges::lower_bound(tensors, tensor, {}, &Assignment::first);
    if (it == tensors.end() || it->first != tensor) return std::nullopt;
    return it->second;
  }

  using Assignment = std::pair<std::string, uint32_t>;  // tensor, number of its file in `shards`
  std::vector<std::string> shards;                      // sorted
  std::vector<Assignment> tensors;                      // sorted by name
};

// Reads {"weight_map": {TENSOR: FILE}} and ignores all other members, so that only the map takes
// memory.
class IndexReader final : public JsonEvents {
 public:
  explicit IndexReader(std::string_view file) : JsonEvents(file, /*max_depth=*/64) {}

  WeightMap Take() &&;

  bool null() override { return OtherValue(); }
  bool boolean(bool) override { return OtherValue(); }
  bool number_integer(int64_t) override { return OtherValue(); }
  bool number_unsigned(uint64_t) override { return OtherValue(); }
  bool number_float(double, const std::string&) override { return OtherValue(); }
  bool start_array(size_t) override { return OtherValue() && Enter(); }
  bool start_object(size_t) override {
    if (depth() == 1 && in_map_) {
      has_map_ = true;
    } else if (depth() != 0) {
      OtherValue();
    }
    return Enter();
  }
  bool key(std::string& name) override {
    if (depth() == 1) {
      if (name == "weight_map" && has_map_)
        throw Invalid("{}: weight_map appears twice", this->name());
      in_map_ = name == "weight_map";
    } else if (depth() == 2 && in_map_) {
      tensor_ = std::move(name);
    }
    return true;
  }
  bool string(std::string& shard) override {
    if (depth() != 2 || !in_map_) return OtherValue();
    if (tensors_.size() >= Checkpoint::kMaxTensors) {
      throw Invalid("{}: weight_map has more than {} tensors", name(), Checkpoint::kMaxTensors);
    }
    const auto index = static_cast<uint32_t>(shards_.size());
    tensors_.emplace_back(std::move(tensor_),
                          shards_.emplace(std::move(shard), index).first->second);
    return true;
  }

 private:
  // Throws if weight_map or a file name is required at the position of this value.
  bool OtherValue() {
    if (depth() == 0 || (depth() == 1 && in_map_)) {
      throw Invalid("{}: weight_map is missing or not an object", name());
    }
    if (depth() == 2 && in_map_) {
      throw Invalid("{}: weight_map[\"{}\"] is not a file name", name(), tensor_);
    }
    return true;
  }

  std::map<std::string, uint32_t> shards_;  // file -> number in order of first appearance
  std::vector<std::pair<std::string, uint32_t>> tensors_;
  std::string tensor_;
  bool in_map_ = false;  // the last key of the top object is weight_map
  bool has_map_ = false;
};

WeightMap IndexReader::Take() && {
  if (tensors_.empty()) throw Invalid("{}: weight_map is missing, empty or not an object", name());
  WeightMap out{.shards = {}, .tensors = std::move(tensors_)};
  std::vector<uint32_t> place(shards_.size());
  for (const auto& [shard, index] : shards_) {
    place[index] = static_cast<uint32_t>(out.shards.size());
    out.shards.push_back(shard);
  }
  for (auto& [tensor, shard] : out.tensors) shard = place[shard];
  std::ranges::sort(out.tensors);
  return out;
}

WeightMap ReadWeightMap(const fs::path& path) {
  const std::string name = path.string();
  IndexReader reader(name);
  ParseJsonEvents(ReadRegularFile(path, kMaxIndexBytes), &reader);
  return std::move(reader).Take();
}

void CheckShardName(const std::string& shard, const fs::path& index_path) {
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

// Returns nullopt if the checkpoint is a single file.
std::optional<WeightMap> FindWeightMap(const fs::path& dir) {
  const fs::path index_path = dir / kIndexFile;
  if (!fs::exists(index_path)) {
    if (FindGguf(dir))
      throw Invalid("{}: is a GGUF model; this command needs a safetensors checkpoint",
                    dir.string());
    if (!fs::exists(dir / kSingleFile)) {
      throw NotFound("{}: neither {} nor {} exists; want a safetensors checkpoint", dir.string(),
                     kSingleFile, kIndexFile);
    }
    return std::nullopt;
  }
  WeightMap weight_map = ReadWeightMap(index_path);
  for (const std::string& shard : weight_map.shards) CheckShardName(shard, index_path);
  return weight_map;
}

// Adds the file's tensors, except those that the index assigns to another file. Such tensors are
// obsolete; reused shards and overlays contain them. `weight_map`: null without an index; `shard`:
// number of the file in it.
void AddFile(const fs::path& path, const WeightMap* weight_map, uint32_t shard,
             std::map<std::string, StoredTensor, std::less<>>* tensors) {
  const RegularFile file(path);
  const auto map = MapFile(file);
  TensorEntries entries = ParseSafetensorsHeader({map->data, map->size}, map->size, map->name);
  while (
      !entries.empty()) {  // extract() frees each entry immediately: names are never stored twice
    auto node = entries.extract(entries.begin());
    if (weight_map != nullptr && weight_map->ShardOf(node.key()).value_or(shard) != shard) continue;
    TensorEntry& entry = node.mapped();
    StoredTensor tensor{.dtype = entry.dtype,
                        .shape = std::move(entry.shape),
                        .data = map->data + entry.begin,
                        .num_bytes = entry.end - entry.begin,
                        .file = map->name,
                        .owner = map};
    const auto [it, added] = tensors->try_emplace(std::move(node.key()), std::move(tensor));
    if (!added) {
      throw Invalid("tensor \"{}\" is in {} and in {}", it->first, it->second.file, map->name);
    }
  }
  if (tensors->size() > Checkpoint::kMaxTensors) {
    throw Invalid("{}: more than {} tensors in all files", path.parent_path().string(),
                  Checkpoint::kMaxTensors);
  }
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& dir) : dir_(dir) {
  const auto weight_map = FindWeightMap(dir);
  if (!weight_map) {
    AddFile(dir / kSingleFile, nullptr, 0, &tensors_);
    Rename();
    return;
  }
  std::vector<std::string> paths;
  for (const std::string& shard : weight_map->shards) {
    AddFile(dir / shard, &*weight_map, static_cast<uint32_t>(paths.size()), &tensors_);
    paths.push_back((dir / shard).string());
  }
  for (const auto& [name, shard] : weight_map->tensors) {
    const StoredTensor* tensor = Find(name);
    if (!tensor || tensor->file != paths[shard]) {
      throw Invalid("{}: weight_map has tensor \"{}\" in {}, which lacks it",
                    (dir / kIndexFile).string(), name, weight_map->shards[shard]);
    }
  }
  Rename();
}

void Checkpoint::Rename() {
  names_ = StoredNamesOf(tensors_);
  RenameToFamily(names_, &tensors_);
}

std::vector<FileStamp> WeightFiles(const fs::path& dir) {
  std::vector<FileStamp> files;
  if (const auto gguf = FindGguf(dir)) {
    for (const fs::path& split : GgufSplits(*gguf)) files.push_back(RegularFile(split).stamp());
    return files;
  }
  const auto weight_map = FindWeightMap(dir);
  if (!weight_map) return {RegularFile(dir / kSingleFile).stamp()};
  for (const std::string& shard : weight_map->shards) {
    files.push_back(RegularFile(dir / shard).stamp());
  }
  return files;
}

const StoredTensor* Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const StoredTensor* Checkpoint::FindStored(std::string_view name) const {
  return Find(NameOfFamily(names_, name));
}

}  // namespace switchyard
