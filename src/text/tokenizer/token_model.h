// The "model" of tokenizer.json: encodes words to ids.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/unigram_model.h"

namespace switchyard {

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

}  // namespace switchyard
