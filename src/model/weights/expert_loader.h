// Single experts of a rank, loaded while the model runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "comm/mesh.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/layer.h"

namespace switchyard {

// Reads what LoadWeights would read of an expert, in the same way: matrices that are used as they
// are stored are views of the mapped file, whose pages are brought in; others are converted, by the
// calling thread. So an expert has the same bits wherever it sits. Each has memory of its own,
// which goes with the last view. One thread at a time, any.
class ExpertLoader {
 public:
  // Opens the checkpoint and keeps its files mapped; borrows nothing. Throws Checkpoint's errors.
  ExpertLoader(const std::filesystem::path& dir, const ModelConfig& config, const Mesh& mesh,
               const LoadOptions& options);
  ~ExpertLoader();

  // The logical expert's MoE-TP part. Throws what LoadWeights throws of it.
  OwnedExpert Load(int64_t layer, int32_t expert) const;
  // Whether experts are converted, or made up, and not used as the files have them: as the first
  // layer that has some shows. Loads one of them.
  bool Converts() const;
  // Bytes of that part as they are counted while loading.
  size_t BytesPerExpert(int64_t layer) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace switchyard
