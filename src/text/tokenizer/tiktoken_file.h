// Vocabularies in the format of the library tiktoken: each line a token in base64 and its rank.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// Whether the text of a file may be such a vocabulary (and not, say, a SentencePiece model).
bool LooksLikeTiktoken(std::string_view text);

// How texts are cut into words: as the tokenizers of Kimi-K2, Kimi-VL and Moonlight do
// (tokenization_kimi.py), or as those of Llama 3.
enum class TiktokenPattern { kKimi, kLlama3 };

// The vocabulary as tokenizer.json has it, with the same ids for every text. Tokens that
// `added_tokens_decoder` (of tokenizer_config.json; may be null) has above the vocabulary are added
// as special tokens, and <|reserved_token_ID|> in the gaps between them, as transformers does.
// Throws Error that names `file` for a malformed one.
nlohmann::json TokenizerOfTiktoken(std::string_view text, TiktokenPattern pattern,
                                   const nlohmann::json& added_tokens_decoder,
                                   const std::string& file);

}  // namespace switchyard
