// The weights that all ranks of a layout hold equally, loaded before the rank is known.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>

#include "comm/mesh.h"
#include "model/config.h"
#include "model/weights.h"

namespace switchyard {

// A spare process (--spare-ranks) holds these weights. When it takes the place of a rank, it loads
// only the rank's other weights. If all ranks have whole attention and dense layers, the common
// weights are all but the experts; with one rank, they are all weights. A matrix is common if all
// ranks request the same part of it.
//
// Owned by one thread. Weights that Load returns outlive the object.
class CommonWeights {
 public:
  using Progress = std::function<void(size_t done, size_t total)>;

  // Loads the common weights of the ranks of `shape`. `options`: as for LoadWeights on any rank;
  // `options.progress` is called as there. Throws the errors of LoadWeights for common tensors.
  CommonWeights(const std::filesystem::path& dir, const ModelConfig& config, const MeshShape& shape,
                const LoadOptions& options);
  ~CommonWeights();

  // The weights of a rank of the shape, with the same bits as those of LoadWeights. `options` may
  // have other placements and another progress than those of the constructor. Throws the errors of
  // LoadWeights.
  ModelWeights Load(const Mesh& mesh, const LoadOptions& options) const;
  // Bytes of the common weights, as counted by ModelWeights::bytes_mapped.
  size_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
