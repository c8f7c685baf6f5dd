#include "model/weights/stored_weights.h"

#include <algorithm>

#include "model/gguf/gguf_source.h"

namespace switchyard {
namespace {

// The source of ReducedHead::owner, which maps its checkpoint itself.
class OwningSource : public WeightSource {
 public:
  OwningSource(const ModelConfig& config, const CheckpointSourceOptions& options)
      : stored_(config.reduced_head->owner_dir),
        source_(stored_.MakeSource(*config.reduced_head->owner, Without(options))) {}

  bool Has(const std::string& name) const override { return source_->Has(name); }
  WeightView Matrix(const MatrixRequest& request) override { return source_->Matrix(request); }
  void Vector(const VectorRequest& request, std::span<float> out) override {
    source_->Vector(request, out);
  }
  void Finish(const Progress& progress) override { source_->Finish(progress); }

 private:
  // `found` lists tensors of the draft model's checkpoint.
  static CheckpointSourceOptions Without(CheckpointSourceOptions options) {
    options.found = nullptr;
    return options;
  }

  const StoredWeights stored_;
  const std::unique_ptr<WeightSource> source_;
};

}  // namespace

StoredWeights::StoredWeights(const std::filesystem::path& path) {
  if (const auto gguf = FindGguf(path)) {
    gguf_.emplace(*gguf);
  } else {
    checkpoint_.emplace(path);
  }
}

std::unique_ptr<WeightSource> StoredWeights::MakeSource(
    const ModelConfig& config, const CheckpointSourceOptions& options) const {
  return WithOwnerOfHead(config, [&](const ModelConfig& of) -> std::unique_ptr<WeightSource> {
    if (&of != &config) return std::make_unique<OwningSource>(config, options);
    return gguf_ ? MakeGgufSource(*gguf_, config, options)
                 : MakeCheckpointSource(*checkpoint_, config, options);
  });
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
