// Readers of the files of tokenizers: tokenizer.json, tokenizer_config.json, GGUF and tiktoken.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/gguf_files.h"

namespace switchyard {

// Reads tokenizer files.

// Throws Error kNotFound, or kInvalid if the file exceeds the size limit.
std::string ReadTokenizerFile(const std::filesystem::path& path);

// Throws Error kInvalid that names `name_for_errors`.
nlohmann::json ParseTokenizerJson(std::string_view json, std::string_view name_for_errors);

// Options of tokens from the other files of a checkpoint, such as tokenizer_config.json.

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

// Pre-tokenizers by the names that GGUF files give them (tokenizer.ggml.pre).

// Components of tokenizer.json, and the options that a name implies.
struct GgufPreTokenizer {
  nlohmann::json pre_tokenizer, normalizer;
  bool ignore_merges = false;
  bool add_bos = false;  // unless tokenizer.ggml.add_bos_token overrides it
};

// The pre-tokenizer of this name; nullopt if the name is unknown.
std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name);
std::string GgufPreTokenizerNames();  // the known names, for error messages

// The tokenizer in a GGUF file's metadata, in the form of a checkpoint's files.

// The equivalent of tokenizer.json. Models "gpt2" (BPE with a named pre-tokenizer) and "llama"
// (SentencePiece's BPE with scores). Error kInvalid names the file and key: other models, unknown
// pre-tokenizers, missing or inconsistent lists.
nlohmann::json TokenizerOfGguf(const GgufFiles& files);

// The equivalent of tokenizer_config.json: bos_token, eos_token, unk_token and pad_token,
// add_bos_token, add_eos_token, chat_template. Error kInvalid if an id has no token.
nlohmann::json TokenizerConfigOfGguf(const GgufFiles& files);

// Whether the file has a vocabulary.
bool HasGgufTokenizer(const GgufFiles& files);

// Vocabularies in tiktoken's format: each line has a base64 token and its rank.

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
