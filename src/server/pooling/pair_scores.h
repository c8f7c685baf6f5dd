// Scores of pairs of texts: the cosine of their embeddings, or the score of a classifier with one
// class.
#pragma once

#include <string>
#include <vector>

#include "server/pooling/batch.h"

namespace switchyard::pooling {

// The pairs of a request as prompts of a batch. Pair i consists of text i of `first`, or the only
// text of `first`, and text i of `second`. With an embedding model, each text is one prompt. With a
// classifier, each pair is one prompt.
class PairScores {
 public:
  // Throws RequestError if the numbers of texts do not match, or if the model is a classifier with
  // several classes. `first_key`, `second_key`: fields of the texts.
  PairScores(const Service& service, const Fields& f, const char* first_key,
             const std::vector<std::string>& first, const char* second_key,
             const std::vector<std::string>& second, Batch* batch);

  // The score of each pair, computed from the results of the batch.
  std::vector<float> Of(const std::vector<Accumulated>& all) const;

 private:
  const PoolingConfig& config_;
  const size_t first_, pairs_;  // numbers of texts of `first` and of pairs
  const bool activate_;
};

}  // namespace switchyard::pooling
