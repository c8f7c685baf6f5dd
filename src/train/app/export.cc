#include <optional>
#include <string>
#include <system_error>

#include "core/error.h"
#include "core/safetensors_writer.h"
#include "model/weights/safetensors.h"
#include "train/app/training.h"
#include "train/run/checkpoint.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

bool IsCheckpointFile(const std::string& name) {
  return name == "trainer.json" || name.ends_with(".safetensors") ||
         name == "model.safetensors.index.json";
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
    if (IsCheckpointFile(entry.path().filename().string())) continue;
    fs::copy_file(entry.path(), part / entry.path().filename());
  }
}

}  // namespace

fs::path ExportFinal(const fs::path& output) {
  const std::optional<fs::path> last = LatestCheckpoint(output);
  if (!last) throw NotFound("--output {}: no checkpoint to export", output.string());
  const fs::path part = output / ".final.part";
  fs::path dir = output / "final";
  std::error_code ignored;
  try {
    fs::remove_all(part);
    fs::create_directories(part);
    WriteModel(part, *last);
    fs::remove_all(dir);
    fs::rename(part, dir);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(part, ignored);
    throw Resource("{}: {}", dir.string(), error.what());
  } catch (const Error&) {
    fs::remove_all(part, ignored);
    throw;
  }
  return dir;
}

}  // namespace switchyard::train
