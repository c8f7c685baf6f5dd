#include "server/front/defined_grammars.h"

namespace switchyard {

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
