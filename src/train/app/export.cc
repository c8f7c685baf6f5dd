#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/safetensors_writer.h"
#include "model/weights/safetensors.h"
#include "train/app/options.h"
#include "train/app/training.h"
#include "train/run/checkpoint.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

bool IsCheckpointFile(const std::string& name) {
  return name == "trainer.json" || name.ends_with(".safetensors") ||
         name == "model.safetensors.index.json";
}

void WriteAdapters(const fs::path& part, const fs::path& from) {
  const std::map<std::string, StoredAdapter> adapters = ReadAdapters(from);
  SafetensorsWriter writer;
  for (const auto& [name, adapter] : adapters)
    writer.AddView("base_model.model." + name, DType::kF32, adapter.shape, adapter.value.data());
  writer.SetMetadata("format", "pt");
  writer.Write(part / "adapter_model.safetensors");
  fs::copy_file(from / kLoraFile, part / "adapter_config.json");
}

void WriteModel(const fs::path& part, const fs::path& from) {
  const Checkpoint checkpoint(from);
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    writer.AddView(name, tensor.dtype, tensor.shape, tensor.data);
  }
  writer.SetMetadata("format", "pt");
  writer.Write(part / "model.safetensors");
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (IsCheckpointFile(name) || name == kLoraFile) continue;
    fs::copy_file(entry.path(), part / entry.path().filename());
  }
}

// Writes `dir` with `write` under a temporary name, and replaces an older one.
void WriteFolder(const fs::path& dir, const std::function<void(const fs::path&)>& write) {
  const fs::path part = dir.parent_path() / ("." + dir.filename().string() + ".part");
  std::error_code ignored;
  try {
    fs::remove_all(part);
    fs::create_directories(part);
    write(part);
    fs::remove_all(dir);
    fs::rename(part, dir);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(part, ignored);
    throw Resource("{}: {}", dir.string(), error.what());
  } catch (const Error&) {
    fs::remove_all(part, ignored);
    throw;
  }
}

}  // namespace

fs::path ExportFinal(const fs::path& output) {
  const std::optional<fs::path> last = LatestCheckpoint(output);
  if (!last) throw NotFound("--output {}: no checkpoint to export", output.string());
  fs::path dir = output / "final";
  WriteFolder(dir, [&](const fs::path& part) { WriteModel(part, *last); });
  if (fs::exists(*last / kLoraFile))
    WriteFolder(output / "adapter", [&](const fs::path& part) { WriteAdapters(part, *last); });
  return dir;
}

}  // namespace switchyard::train
