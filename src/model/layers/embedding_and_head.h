// Embedding and head, sharded by rows of the vocabulary.
#pragma once

#include <span>

#include "model/layers/context.h"
#include "model/pass.h"
#include "model/weights.h"

namespace switchyard {

// The embedding is sharded over the attention group. The head is sharded over the attention group
// too if dense layers are replicated. Otherwise it is sharded over the world, and every rank
// processes the rows of all groups.
class EmbeddingAndHead {
 public:
  EmbeddingAndHead(const LayerContext& context, const ModelWeights& weights)
      : c_(context), weights_(weights) {}

  // out [T, H], complete on every rank of the attention group.
  void Embed(const Pass& pass, float* out) const;
  // Allocates buffers for the logit rows of all groups, group_rows [dp]. Returns true if a buffer
  // moved.
  bool Reserve(std::span<const int64_t> group_rows, HeadBuffers* buffers) const;
  // hidden [rows of this rank's group, H] → head->logits [rows, vocab], complete on every rank
  // of the group. group_rows [dp]: at most those reserved. With ModelConfig::pooling, each rank
  // computes all columns of its group's rows, [rows, output_width], without communication.
  void Logits(std::span<const int64_t> group_rows, const float* hidden, HeadBuffers* head) const;

 private:
  // out [rows, output_width]: scores of all classes, or the hidden rows.
  void Pool(const float* hidden, int64_t rows, float* out) const;
  // out [rows, vocabulary of this rank]
  void Multiply(const float* hidden, int64_t rows, float* out) const;
  // Gathers complete rows from all members' shards. `own` [rows, vocabulary of this rank].
  void Join(Collectives& group, const float* own, int64_t rows, bool wanted,
            HeadBuffers& buffers) const;
  bool SplitOverWorld() const { return !c_.mesh.replicated_dense() && c_.mesh.dp() > 1; }

  const LayerContext& c_;
  const ModelWeights& weights_;
};

}  // namespace switchyard
