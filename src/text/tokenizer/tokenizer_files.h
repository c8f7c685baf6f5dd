// Writes the result of BpeTrainer as files for Hugging Face's libraries and Tokenizer.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer/bpe_trainer.h"

namespace switchyard {

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
