// Embedding and head, each rank holding a run of the vocabulary's rows.
#pragma once

#include <span>

#include "model/layers/context.h"
#include "model/weights.h"

namespace switchyard {

// The embedding is split over the attention group. So is the head where dense layers are whole on
// each rank; else it is split over the world, which then works on the rows of all groups.
class EmbeddingAndHead {
 public:
  EmbeddingAndHead(const ModelConfig& config, const ModelWeights& weights)
      : config_(config), weights_(weights) {}

  // out [T, H], whole on every rank of the attention group.
  void Embed(const LayerContext& c, float* out) const;
  // Memory for passes of at most these logit rows. True where some of it moved.
  bool Reserve(const Mesh& mesh, std::span<const int64_t> group_rows, kernels::Device& device);
  // hidden [rows of this rank's group, H] → logits [rows, vocab] on the device, whole on every rank
  // of the group; valid until the next call. group_rows [dp]: rows of each group, at most those
  // reserved.
  const float* Logits(const LayerContext& c, const float* hidden,
                      std::span<const int64_t> group_rows);
  const float* logits() const { return logits_.data(); }  // of the last pass

 private:
  // out [rows, vocabulary of this rank]
  void Multiply(kernels::Device& device, const float* hidden, int64_t rows, float* out) const;
  // Whole rows from all members' runs of them. `own` [rows, vocabulary of this rank].
  void Join(Collectives& group, kernels::Device& device, const float* own, int64_t rows,
            bool wanted);
  bool SplitOverWorld(const Mesh& mesh) const { return !mesh.whole_dense() && mesh.dp() > 1; }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Activations all_hidden_;  // [rows of all groups, H]
  Activations own_;         // [rows, vocabulary of this rank]
  Activations gathered_;    // one such block after the other
  Activations logits_;      // [rows, vocab]
};

}  // namespace switchyard
