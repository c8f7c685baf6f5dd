// The tokenizer in a GGUF file's metadata, in the form of a checkpoint's files.
#pragma once

#include <nlohmann/json.hpp>

#include "core/gguf_files.h"

namespace switchyard {

// The equivalent of tokenizer.json. Models "gpt2" (BPE with a named pre-tokenizer) and "llama"
// (SentencePiece's BPE with scores). Error kInvalid names the file and key: other models, unknown
// pre-tokenizers, missing or inconsistent lists.
nlohmann::json TokenizerOfGguf(const GgufFiles& files);

// The equivalent of tokenizer_config.json: bos_token, eos_token, unk_token and pad_token,
// add_bos_token, add_eos_token, chat_template. Error kInvalid if an id has no token.
nlohmann::json TokenizerConfigOfGguf(const GgufFiles& files);

// Whether the file has a vocabulary.
bool HasGgufTokenizer(const GgufFiles& files);

}  // namespace switchyard
