// Embedding vectors, and scores of pairs of texts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/pooling.h"
#include "server/pooling/batch.h"

namespace switchyard::pooling {

// Arithmetic on pooled vectors, and their form in JSON.

// Scales `vector` to length 1. A vector of zeros is not changed.
void Normalize(std::span<float> vector);
void Softmax(std::span<float> scores);
// Applies the activation of a classifier.
void Activate(const PoolingConfig& config, std::span<float> scores);
// The cosine of the angle between two vectors of equal size; 0 if one of them is zero.
float Cosine(std::span<const float> a, std::span<const float> b);

// Converts `values` to a JSON list. Each number has the fewest digits that give the same float32
// value.
std::string JsonList(std::span<const float> values);

// Scores of pairs of texts: the cosine of their embeddings, or the score of a classifier with one
// class.

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
