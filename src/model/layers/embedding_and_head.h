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
  void Embed(std::span<const int32_t> tokens, RankComm& comm, ThreadPool& pool, float* out) const;
  // hidden [rows of this rank's group, H] → logits [rows, vocab], whole on every rank of the group;
  // valid until the next call. group_rows [dp]: rows of each group.
  std::span<const float> Logits(const float* hidden, std::span<const int64_t> group_rows,
                                RankComm& comm, ThreadPool& pool);

 private:
  // out [rows, vocabulary of this rank]
  void Multiply(const float* hidden, int64_t rows, ThreadPool& pool, Activations& out) const;
  // Whole rows from all members' runs of them. `own` [rows, vocabulary of this rank].
  void Join(Communicator& group, const float* own, int64_t rows, bool wanted);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Activations all_hidden_;  // [rows of all groups, H]
  Activations own_;         // [rows, vocabulary of this rank]
  Activations gathered_;    // one such block after the other
  Activations logits_;      // [rows, vocab]
};

}  // namespace switchyard
