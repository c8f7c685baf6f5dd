// Training of a byte-level BPE tokenizer, and the files of the result.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer/pre_tokenizer.h"

namespace switchyard {

// Learns the vocabulary of a byte-level BPE tokenizer from text.

struct BpeTrainingOptions {
  int vocab_size = 8192;      // total number of tokens: special tokens, 256 bytes, merges
  int64_t min_frequency = 2;  // minimum count of a merged pair
  int max_token_bytes = 32;   // maximum length of a token
  // These tokens get the first ids, in this order. No merge produces them.
  std::vector<std::string> special_tokens;
};

// Tokens by id: special tokens in plain text, all others in the byte-level alphabet
// (text/tokenizer/pre_tokenizer.h). Merges are in the order of their ranks.
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

// Writes the result of BpeTrainer as files for Hugging Face's libraries and Tokenizer.

// Pre-tokenizer pattern, a variant of Qwen2's: contractions, a word with the space before it,
// single digits (so that numbers have one spelling), runs of other characters, line breaks, spaces.
extern const char* const kWordPattern;

// The "pre_tokenizer" of tokenizer.json: Split by `pattern` (Oniguruma syntax), then ByteLevel.
nlohmann::json ByteLevelPreTokenizer(const std::string& pattern);

// ChatML: <|im_start|>role, a line break, the text, <|im_end|>, a line break. Needs these two
// special tokens.
extern const char* const kDefaultChatTemplate;

struct TokenizerFileOptions {
  std::string pattern = kWordPattern;
  // All except eos may be empty. The post-processor puts bos before every encoded text; a chat
  // template writes its own.
  std::string bos, eos, pad;
  std::string chat_template;  // Jinja source; empty: none
  int64_t max_length = 0;     // "model_max_length"; 0: omitted
};

// Writes tokenizer.json and tokenizer_config.json into `dir`, which is created if missing. Each
// file is written atomically. Throws Error kInvalid if bos, eos or pad is not a special token, and
// kResource if a file cannot be written.
void WriteTokenizer(const std::filesystem::path& dir, const LearnedBpe& bpe,
                    const std::vector<std::string>& special_tokens,
                    const TokenizerFileOptions& options);

}  // namespace switchyard
