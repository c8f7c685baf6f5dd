// Learns the vocabulary of a byte-level BPE tokenizer from text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer/pre_tokenizer.h"

namespace switchyard {

struct BpeTrainingOptions {
  int vocab_size = 8192;      // total number of tokens: special tokens, 256 bytes, merges
  int64_t min_frequency = 2;  // minimum count of a merged pair
  int max_token_bytes = 32;   // maximum length of a token
  // These tokens get the first ids, in this order. No merge produces them.
  std::vector<std::string> special_tokens;
};

// Tokens by id: special tokens in plain text, all others in the byte-level alphabet
// (text/tokenizer/byte_level.h). Merges are in the order of their ranks.
struct LearnedBpe {
  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> merges;
};

// Byte-pair encoding (Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with
// Subword Units, 2016) over bytes (Radford et al.: GPT-2, 2019). The pre-tokenizer splits texts
// into words. The most frequent pair of neighbours becomes a token, repeatedly. Ties are broken by
// the smaller ids, so the vocabulary does not depend on the order of the words. Single-threaded.
class BpeTrainer {
 public:
  // The "pre_tokenizer" of a tokenizer.json, including ByteLevel. Throws Error if it is malformed.
  explicit BpeTrainer(const nlohmann::json& pre_tokenizer);

  // Counts the words of a text: UTF-8, with each invalid sequence as U+FFFD.
  void Add(std::string_view text);

  // Stops early if no pair is frequent enough. Throws Error kInvalid if the size is too small for
  // special tokens and bytes, or if a special token is empty or duplicate.
  LearnedBpe Learn(const BpeTrainingOptions& options) const;

 private:
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unordered_map<std::string, int64_t> words_;  // word in the byte-level alphabet -> count
};

}  // namespace switchyard
