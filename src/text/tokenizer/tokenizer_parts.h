// The parts of a tokenizer, and the model and the post-processor among them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/unigram_model.h"

namespace switchyard {

// The "post_processor" of tokenizer.json: adds special tokens around an encoded text.

// Immutable, thread-safe.
class PostProcessor {
 public:
  // A null node adds nothing. `vocab_size`: upper bound of token ids, exclusive. Throws Error for
  // types other than Sequence, TemplateProcessing, ByteLevel, BertProcessing and RobertaProcessing,
  // and if more than one adds tokens.
  PostProcessor(const JsonNode& node, int vocab_size);

  std::vector<int32_t> AddSpecialTokens(std::vector<int32_t> ids) const;

 private:
  void Read(const JsonNode& node, int vocab_size, int depth);

  bool adds_tokens_ = false;
  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

// The "model" of tokenizer.json: encodes words to ids.

// Immutable, thread-safe; each thread needs its own Scratch.
class TokenModel {
 public:
  struct Scratch {
    BpeModel::Scratch bpe;
    UnigramModel::Scratch unigram;
  };

  // Throws Error for types other than BPE and Unigram. Older files have no type: a vocabulary that
  // is a list means Unigram, an object means BPE.
  explicit TokenModel(const JsonNode& node) : model_(Read(node)) {}

  const Vocabulary& vocabulary() const {
    return std::visit([](const auto& model) -> const Vocabulary& { return model.vocabulary(); },
                      model_);
  }

  // Appends the ids of one word.
  void Encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
    if (const auto* bpe = std::get_if<BpeModel>(&model_)) {
      bpe->Encode(word, &scratch->bpe, ids);
    } else {
      std::get<UnigramModel>(model_).Encode(word, &scratch->unigram, ids);
    }
  }

 private:
  using Model = std::variant<BpeModel, UnigramModel>;

  static Model Read(const JsonNode& node) {
    const JsonNode type = node["type"];
    const bool unigram = type.is_null() ? node["vocab"].raw().is_array() : type.raw() == "Unigram";
    if (unigram) return Model(std::in_place_type<UnigramModel>, node);
    return Model(std::in_place_type<BpeModel>, node);
  }

  Model model_;
};

// The components of one tokenizer.json. Private to Tokenizer and IncrementalDetokenizer.

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
