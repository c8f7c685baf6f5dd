#include "server/ranks/overlay_checkpoint.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "core/regular_file.h"
#include "engine/request.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kObjects = "/dev/shm";  // where Linux shows POSIX shared memory
constexpr const char* kIndex = "model.safetensors.index.json";

Error BadObject(const std::string& why) { return ParameterError("shared_memory", why); }

TensorEntries HeaderOf(const fs::path& path) {
  const RegularFile file(path);
  const auto map = MapFile(file);
  return ParseSafetensorsHeader({map->data, map->size}, map->size, map->name);
}

// shm_open's names may begin with a slash, and have no other one.
std::string FileName(const std::string& object) {
  std::string name = object.starts_with('/') ? object.substr(1) : object;
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos)
    throw BadObject(fmt::format("\"{}\" is not the name of a shared memory object", object));
  return name;
}

TensorEntries ObjectHeader(const fs::path& path) {
  try {
    return HeaderOf(path);
  } catch (const Error& error) {  // its text has the path
    throw BadObject(error.what());
  }
}

}  // namespace

OverlayCheckpoint::OverlayCheckpoint() {
  std::string name = (fs::temp_directory_path() / "switchyard-weights-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Resource("no directory for an index of tensors can be made in {}: {}",
                   fs::temp_directory_path().string(), std::strerror(errno));
  dir_ = name;
}

OverlayCheckpoint::~OverlayCheckpoint() {
  std::error_code ignored;  // what is left are links in the directory for temporary files
  fs::remove_all(dir_, ignored);
}

std::shared_ptr<const OverlayCheckpoint> OverlayCheckpoint::Make(
    const fs::path& base, bool base_has_weights, std::span<const std::string> objects) {
  if (objects.empty()) throw BadObject("no object is named");
  if (FindGguf(base))
    throw Invalid("{}: tensors cannot replace those of a GGUF model", base.string());
  std::map<std::string, std::string> files;  // tensor -> its file in the overlay
  std::map<std::string, fs::path> links;     // file in the overlay -> its target
  TensorEntries present;
  if (base_has_weights) {
    // Tensors that an index assigns to another file are obsolete.
    const Checkpoint checkpoint(base);
    for (const FileStamp& stamp : WeightFiles(base)) {
      const std::string link = fmt::format("base-{}.safetensors", links.size());
      links[link] = fs::canonical(stamp.path);
      for (auto& [name, entry] : HeaderOf(stamp.path)) {
        const StoredTensor* tensor = checkpoint.FindStored(name);
        if (tensor == nullptr || fs::path(tensor->file) != stamp.path) continue;
        files[name] = link;
        present.emplace(name, std::move(entry));
      }
    }
  }
  std::map<std::string, std::string> object_of;
  for (const std::string& object : objects) {
    const fs::path path = fs::path(kObjects) / FileName(object);
    const std::string link = fmt::format("tensors-{}.safetensors", links.size());
    links[link] = path;
    for (const auto& [name, entry] : ObjectHeader(path)) {
      if (const auto [other, added] = object_of.emplace(name, object); !added)
        throw BadObject(
            fmt::format("tensor \"{}\" is in object {} and in {}", name, other->second, object));
      if (base_has_weights) {
        const auto old = present.find(name);
        if (old == present.end())
          throw BadObject(fmt::format("object {} has tensor \"{}\", which the present weights lack",
                                      object, name));
        if (old->second.shape != entry.shape)
          throw BadObject(fmt::format(
              "object {}: tensor \"{}\" is [{}], but [{}] in the present "
              "weights",
              object, name, fmt::join(entry.shape, ", "), fmt::join(old->second.shape, ", ")));
      }
      files[name] = link;
    }
  }
  nlohmann::json weight_map = nlohmann::json::object();
  std::map<std::string, fs::path> used;  // the index names no file without tensors
  for (const auto& [name, file] : files) {
    weight_map[name] = file;
    used[file] = links.at(file);
  }

  const std::shared_ptr<OverlayCheckpoint> overlay(new OverlayCheckpoint);
  for (const auto& [file, target] : used) fs::create_symlink(target, overlay->dir_ / file);
  for (const fs::directory_entry& file : fs::directory_iterator(base)) {
    const fs::path name = file.path().filename();
    if (!file.is_regular_file() || name == kIndex || name.extension() == ".safetensors") continue;
    fs::create_symlink(fs::canonical(file.path()), overlay->dir_ / name);
  }
  const std::string index = nlohmann::json{{"weight_map", std::move(weight_map)}}.dump();
  OutputFile out(overlay->dir_ / kIndex);
  out.Write(index.data(), index.size());
  out.Finish();
  return overlay;
}

}  // namespace switchyard
