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
  int vocab_size = 8192;      // tokens in all: special ones, the 256 bytes, merges
  int64_t min_frequency = 2;  // a pair that is seen less often is not merged
  int max_token_bytes = 32;   // longer tokens are not made
  // They get the first ids, in this order, and are never the result of a merge.
  std::vector<std::string> special_tokens;
};

// Tokens by id, spelled in the byte-level alphabet (text/tokenizer/byte_level.h), special ones as
// they are; merges in the order in which they apply.
struct LearnedBpe {
  std::vector<std::string> tokens;
  std::vector<std::pair<int32_t, int32_t>> merges;
};

// Byte-pair encoding (Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with
// Subword Units, 2016) over bytes (Radford et al.: GPT-2, 2019). Words are what the pre-tokenizer
// cuts a text into; the pair of neighbours that occurs most often becomes a token, again and again;
// of equally frequent pairs the one with the smaller ids, so that the same words give the same
// vocabulary whatever their order. One thread.
class BpeTrainer {
 public:
  // The "pre_tokenizer" of a tokenizer.json, ByteLevel included. Throws Error where it is
  // malformed.
  explicit BpeTrainer(const nlohmann::json& pre_tokenizer);

  // Counts the words of a text: UTF-8, each invalid sequence counting as U+FFFD.
  void Add(std::string_view text);

  // Stops early where no pair is left that is frequent enough. Throws Error kInvalid where the
  // size leaves no room for special tokens and bytes, a special token is empty or stands twice.
  LearnedBpe Learn(const BpeTrainingOptions& options) const;

 private:
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unordered_map<std::string, int64_t> words_;  // in the byte-level alphabet; how often
};

}  // namespace switchyard
