// What the files beside tokenizer.json say about its tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace switchyard {

// The JSON of the files, null where there is none.
struct TokenizerConfig {
  nlohmann::json config;              // tokenizer_config.json
  nlohmann::json special_tokens_map;  // special_tokens_map.json
  nlohmann::json added_tokens;        // added_tokens.json
  std::string directory;              // for errors
};

// Completes `tokenizer` (the document of tokenizer.json) as transformers 5.24 does:
// - added_tokens_decoder adds tokens and overrides the options of those that are there; without it
//   added_tokens.json and special_tokens_map.json count, as files of older versions;
// - named special tokens (bos_token, ..., image_token and the like) and additional_special_tokens
// or
//   extra_special_tokens are added where they are missing;
// - a new token has its id in the vocabulary, else the id it is declared with if that is free,
//   else the next one (transformers always takes the next one).
// add_bos_token and add_eos_token are those of transformers 4, which 5.24 ignores beside a
// tokenizer.json: true puts the token before or behind every text. false takes it away where
// tokenizer_class is one whose own post-processor replaced that of the file: Llama, Code Llama,
// Gemma and Cohere. Throws Error that names file and key.
void ApplyTokenizerConfig(const TokenizerConfig& files, nlohmann::json* tokenizer);

}  // namespace switchyard
