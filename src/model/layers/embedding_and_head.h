// Embedding and head, sharded by rows of the vocabulary.
#pragma once

#include <span>

#include "model/layers/context.h"
#include "model/weights.h"

namespace switchyard {

// The embedding is sharded over the attention group. So is the head if dense layers are replicated;
// otherwise it is sharded over the world, which then processes the rows of all groups.
class EmbeddingAndHead {
 public:
  EmbeddingAndHead(const ModelConfig& config, const ModelWeights& weights)
      : config_(config), weights_(weights) {}

  // out [T, H], complete on every rank of the attention group.
  void Embed(const LayerContext& c, float* out) const;
  // Allocates memory for passes of at most these logit rows. Returns true if a buffer moved.
  bool Reserve(const Mesh& mesh, std::span<const int64_t> group_rows, kernels::Device& device);
  // hidden [rows of this rank's group, H] → logits [rows, vocab] on the device, complete on every
  // rank of the group; valid until the next call. group_rows [dp]: rows of each group, at most
  // those reserved.
  const float* Logits(const LayerContext& c, const float* hidden,
                      std::span<const int64_t> group_rows);
  const float* logits() const { return logits_.data(); }  // of the last pass

 private:
  // out [rows, vocabulary of this rank]
  void Multiply(kernels::Device& device, const float* hidden, int64_t rows, float* out) const;
  // Gathers complete rows from all members' shards. `own` [rows, vocabulary of this rank].
  void Join(Collectives& group, kernels::Device& device, const float* own, int64_t rows,
            bool wanted);
  bool SplitOverWorld(const Mesh& mesh) const { return !mesh.replicated_dense() && mesh.dp() > 1; }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Activations all_hidden_;  // [rows of all groups, H]
  Activations own_;         // [rows, vocabulary of this rank]
  Activations gathered_;    // such a block of every member, in rank order
  Activations logits_;      // [rows, vocab]
};

}  // namespace switchyard
