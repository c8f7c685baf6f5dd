#include "server/front/grammars.h"

#include <algorithm>

#include "server/front/token_text.h"

namespace switchyard {

GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int64_t vocab_size,
                               std::vector<int32_t> stop_ids) {
  GrammarVocabulary vocabulary{.tokens = std::vector<std::string>(vocab_size),
                               .stop_ids = std::move(stop_ids)};
  const auto known = std::min<int64_t>(vocab_size, tokenizer.VocabSize());
  for (int32_t id = 0; id < known; ++id)
    vocabulary.tokens[id] = tokenizer.IsSpecial(id) ? SpecialTokenBytes(tokenizer.IdToToken(id))
                                                    : TokenBytes(tokenizer, id);
  return vocabulary;
}

std::shared_ptr<const ReadyGrammar> Grammars::Compile(const GrammarSource& source) {
  std::call_once(prepared_, [this] {
    cache_ = std::make_unique<GrammarCache>(VocabularyOf(tokenizer_, vocab_size_, stop_ids_));
  });
  return cache_->Get(source);
}

}  // namespace switchyard
