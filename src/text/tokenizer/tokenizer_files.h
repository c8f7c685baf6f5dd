// Writes what BpeTrainer learned as files that Hugging Face's libraries and Tokenizer load.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer/bpe_trainer.h"

namespace switchyard {

// How a text is cut into words before merges: contractions, a word with the space before it, one
// digit at a time (so that numbers have one spelling), runs of other characters, line ends, spaces.
// The pattern that Qwen2's tokenizer made common.
extern const char* const kWordPattern;

// The "pre_tokenizer" of tokenizer.json: Split by `pattern` (Oniguruma syntax), then ByteLevel.
nlohmann::json ByteLevelPreTokenizer(const std::string& pattern);

// Conversations as ChatML: <|im_start|>role, a line end, the text, <|im_end|>, a line end. Needs
// those two special tokens.
extern const char* const kDefaultChatTemplate;

struct TokenizerFileOptions {
  std::string pattern = kWordPattern;
  // All but eos may be empty. A bos token is put before every text that is encoded with special
  // tokens; a chat template writes its own.
  std::string bos, eos, pad;
  std::string chat_template;  // Jinja; empty: none
  int64_t max_length = 0;     // "model_max_length"; 0: none is stated
};

// Writes tokenizer.json and tokenizer_config.json into `dir`, which is made where it is missing.
// Each file appears whole or not at all. Throws Error kInvalid for a bos, eos or pad that is no
// special token, and kResource where a file cannot be written.
void WriteTokenizer(const std::filesystem::path& dir, const LearnedBpe& bpe,
                    const std::vector<std::string>& special_tokens,
                    const TokenizerFileOptions& options);

}  // namespace switchyard
