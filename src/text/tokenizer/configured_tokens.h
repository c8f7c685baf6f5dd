// Options of tokens from the other files of a checkpoint, such as tokenizer_config.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace switchyard {

// The JSON of the files; null if a file is missing.
struct TokenizerConfig {
  nlohmann::json config;              // tokenizer_config.json
  nlohmann::json special_tokens_map;  // special_tokens_map.json
  nlohmann::json added_tokens;        // added_tokens.json
  std::string directory;              // for error messages
};

// Completes `tokenizer` (the document of tokenizer.json) in the way of transformers 5.24:
// - added_tokens_decoder adds tokens and overrides options of existing ones. If it is missing, the
//   files of older versions are used: added_tokens.json and special_tokens_map.json;
// - named special tokens (bos_token, ..., image_token and the like) are added if they are missing,
//   and so are additional_special_tokens or extra_special_tokens;
// - a new token gets its id in the vocabulary, or its declared id if that is free, or the next free
//   id (transformers always takes the next one).
// add_bos_token and add_eos_token follow transformers 4 (5.24 ignores them if there is a
// tokenizer.json): true adds the token before or after every text. false removes the token, but
// only for tokenizer classes whose own post-processor replaces that of the file: Llama, Code Llama,
// Gemma and Cohere. Throws Error that names file and key.
void ApplyTokenizerConfig(const TokenizerConfig& files, nlohmann::json* tokenizer);

}  // namespace switchyard
