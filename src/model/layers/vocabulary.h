// Embedding and head, each rank holding a run of the vocabulary's rows.
#pragma once

#include <span>

#include "model/layers/context.h"
#include "model/weights.h"

namespace switchyard {

class Vocabulary {
 public:
  Vocabulary(const ModelConfig& config, const ModelWeights& weights)
      : config_(config), weights_(weights) {}

  // out [T, H], whole on every rank.
  void Embed(std::span<const int32_t> tokens, RankComm& comm, ThreadPool& pool, float* out) const;
  // hidden [rows, H] → logits [rows, vocab], whole on every rank; valid until the next call.
  std::span<const float> Logits(const float* hidden, int64_t rows, RankComm& comm,
                                ThreadPool& pool);

 private:
  const ModelConfig& config_;
  const ModelWeights& weights_;
  Activations own_;       // [rows, vocabulary of this rank]
  Activations gathered_;  // one such block after the other
  Activations logits_;    // [rows, vocab]
};

}  // namespace switchyard
