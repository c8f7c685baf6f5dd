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

void DefinedGrammars::AppendDefinition(const ReadyGrammar& grammar,
                                       std::vector<ControlMessage>* messages) {
  if (const auto found = defined_.find(grammar.id); found != defined_.end()) {
    order_.splice(order_.end(), order_, found->second.place);
    return;
  }
  if (!has_vocabulary_) messages->emplace_back(GrammarTokens{*grammar.vocabulary});
  has_vocabulary_ = true;
  const size_t size = grammar.bytes.size();
  while (!order_.empty() &&
         (defined_.size() + 1 > limits_.count || bytes_ + size > limits_.bytes)) {
    const auto oldest = defined_.find(order_.front());
    messages->emplace_back(DropGrammar{oldest->first});
    bytes_ -= oldest->second.bytes;
    defined_.erase(oldest);
    order_.pop_front();
  }
  messages->emplace_back(DefineGrammar{.id = grammar.id, .bytes = grammar.bytes});
  defined_[grammar.id] = {size, order_.insert(order_.end(), grammar.id)};
  bytes_ += size;
}

}  // namespace switchyard
