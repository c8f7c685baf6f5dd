// The "model" of tokenizer.json of type Unigram: the most likely split of a word into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {

// Kudo, "Subword Regularization" (2018), computed as in SentencePiece and the library tokenizers:
// the best path over all tokens by dynamic programming. Immutable, thread-safe; each thread needs
// its own Scratch.
class UnigramModel {
 public:
  class Scratch;

  // Throws Error for malformed nodes and for duplicate tokens.
  explicit UnigramModel(const JsonNode& node);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of one word. A run of characters without tokens becomes one unknown token; with
  // byte_fallback, byte tokens if the vocabulary has them.
  void Encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  void FindBestPath(std::string_view word, Scratch* scratch) const;
  void AppendUnknown(std::string_view run, std::vector<int32_t>* ids) const;

  Vocabulary vocabulary_;
  std::vector<double> scores_;  // [id]
  StringMatcher tokens_;
  int32_t unknown_id_ = -1;  // -1: unknown characters are dropped
  double unknown_score_ = 0;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> id_of_byte_;  // -1: no token
};

class UnigramModel::Scratch {
 private:
  friend class UnigramModel;

  // The best path that ends at a byte position of the word.
  struct Place {
    double score;
    size_t start;  // start of the last token on that path; npos: not reached
    int32_t id;    // id of the last token on that path
  };

  std::vector<Place> places_;
  std::vector<Place> path_;
};

}  // namespace switchyard
