#include "model/weights/stored_weights.h"

#include <algorithm>

#include "model/gguf/gguf_source.h"

namespace switchyard {

StoredWeights::StoredWeights(const std::filesystem::path& path) {
  if (const auto gguf = FindGguf(path)) {
    gguf_.emplace(*gguf);
  } else {
    checkpoint_.emplace(path);
  }
}

std::unique_ptr<WeightSource> StoredWeights::MakeSource(
    const ModelConfig& config, const CheckpointSourceOptions& options) const {
  return gguf_ ? MakeGgufSource(*gguf_, config, options)
               : MakeCheckpointSource(*checkpoint_, config, options);
}

bool StoredWeights::Maps(const uint8_t* address) const {
  if (gguf_) {
    return std::ranges::any_of(gguf_->tensors(), [&](const auto& tensor) {
      const MappedFile& file = *tensor.second.file;
      return address >= file.data && address < file.data + file.size;
    });
  }
  return std::ranges::any_of(checkpoint_->tensors(), [&](const auto& tensor) {
    return address >= tensor.second.data && address < tensor.second.data + tensor.second.num_bytes;
  });
}

}  // namespace switchyard
