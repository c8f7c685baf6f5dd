// The weight files of a model: a directory of safetensors files, or GGUF files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/gguf_files.h"
#include "model/weights/safetensors.h"
#include "model/weights/source.h"

namespace switchyard {

// Files stay mapped as long as the object or a view of its weights lives. Immutable.
class StoredWeights {
 public:
  // Throws the errors of Checkpoint or GgufFiles.
  explicit StoredWeights(const std::filesystem::path& path);

  // Borrows this object and the config.
  std::unique_ptr<WeightSource> MakeSource(const ModelConfig& config,
                                           const CheckpointSourceOptions& options) const;
  // Whether the address is in a tensor of a mapped file.
  bool Maps(const uint8_t* address) const;
  const Checkpoint* checkpoint() const { return checkpoint_ ? &*checkpoint_ : nullptr; }

 private:
  std::optional<Checkpoint> checkpoint_;  // null for GGUF files
  std::optional<GgufFiles> gguf_;
};

}  // namespace switchyard
