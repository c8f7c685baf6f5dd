// Loads single experts of a rank while the model runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "comm/mesh.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/layer_config.h"

namespace switchyard {

// Loads experts with the same bits as LoadWeights, on every rank. Matrices used in their stored
// format are views of the mapped file, whose pages are prefaulted. The calling thread converts all
// other matrices. Each expert has its own memory, which is freed with the last view of the expert.
// Immutable, so several threads may load experts at the same time.
class ExpertLoader {
 public:
  // Opens the checkpoint and keeps its files mapped; borrows nothing. Throws Checkpoint's errors.
  ExpertLoader(const std::filesystem::path& dir, const ModelConfig& config, const Mesh& mesh,
               const LoadOptions& options);
  ~ExpertLoader();

  // Loads the logical expert's MoE-TP shard. Throws as LoadWeights does.
  OwnedExpert Load(int64_t layer, int32_t expert) const;
  // Whether experts are converted or generated instead of used in their stored format. Decided by
  // loading one expert of the first MoE layer.
  bool Converts() const;
  // Bytes of the shard that Load returns, as counted by loading progress.
  size_t BytesPerExpert(int64_t layer) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

// As ExpertLoader::BytesPerExpert, from config.json alone.
size_t LoadedExpertBytes(const ModelConfig& config, const Mesh& mesh, int64_t layer);

}  // namespace switchyard
