// The components of one tokenizer.json. Private to Tokenizer and IncrementalDetokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/post_processor.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/token_model.h"

namespace switchyard {

// Immutable.
struct TokenizerParts {
  explicit TokenizerParts(const JsonNode& root);

  // Pushes the ids to a decoder. Skips ids without a token, and special tokens if
  // `skip_special_tokens`.
  void Push(std::span<const int32_t> ids, bool skip_special_tokens, DecodeStream* stream) const;

  std::unique_ptr<TextNormalizer> normalizer;   // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
  TokenModel model;
  AddedTokens added;
  int vocab_size;  // largest id of `model` and `added`, plus 1
  PostProcessor post_processor;
  TokenDecoder decoder;
};

}  // namespace switchyard
