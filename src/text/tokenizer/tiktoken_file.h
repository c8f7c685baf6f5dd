// Vocabularies in tiktoken's format: each line has a base64 token and its rank.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// True if the text of a file looks like a tiktoken vocabulary (and not, for instance, like a
// SentencePiece model).
bool LooksLikeTiktoken(std::string_view text);

// The pre-tokenizer pattern. kKimi is that of Kimi-K2, Kimi-VL and Moonlight
// (tokenization_kimi.py).
enum class TiktokenPattern { kKimi, kLlama3 };

// Converts the vocabulary to the form of tokenizer.json, with the same ids for every text. As in
// transformers, tokens of `added_tokens_decoder` (of tokenizer_config.json; may be null) with ids
// above the vocabulary become special tokens, and <|reserved_token_ID|> fills the gaps between
// them. Throws Error that names `file` if it is malformed.
nlohmann::json TokenizerOfTiktoken(std::string_view text, TiktokenPattern pattern,
                                   const nlohmann::json& added_tokens_decoder,
                                   const std::string& file);

}  // namespace switchyard
