#include "grammar/vocabulary.h"

#include <mutex>

#include "core/error.h"
#include "core/wire.h"
#include "grammar/xgrammar_impl.h"

namespace switchyard {

void LimitRecursion() {
  static std::once_flag once;
  std::call_once(once, [] { xgrammar::SetMaxRecursionDepth(1000); });
}

std::string GrammarVocabulary::Encode() const {
  WireWriter out;
  out.Put(static_cast<uint64_t>(tokens.size()));
  for (const std::string& token : tokens) out.Put(token);
  out.Put(stop_ids);
  return out.Take();
}

GrammarVocabulary GrammarVocabulary::Decode(std::string_view bytes) {
  WireReader in(bytes);
  GrammarVocabulary vocabulary;
  // No memory is reserved for the count, because the count is untrusted.
  for (auto n = in.Get<uint64_t>(); n > 0; --n) vocabulary.tokens.push_back(in.GetString());
  vocabulary.stop_ids = in.GetVector<int32_t>();
  if (!in.AtEnd()) throw Invalid("the vocabulary of grammars has trailing bytes");
  return vocabulary;
}

TokenTable::TokenTable(const GrammarVocabulary& vocabulary) {
  LimitRecursion();
  const auto size = static_cast<int64_t>(vocabulary.tokens.size());
  if (vocabulary.stop_ids.empty())
    throw Invalid("the model has no end-of-sequence token, so an output with a grammar cannot end");
  for (const int32_t id : vocabulary.stop_ids)
    if (id < 0 || id >= size)
      throw Invalid("end-of-sequence token {} is not in the vocabulary of {} tokens", id, size);
  impl_ = std::make_unique<const Impl>(Impl{xgrammar::TokenizerInfo(
      vocabulary.tokens, xgrammar::VocabType::RAW, static_cast<int>(size), vocabulary.stop_ids)});
}

TokenTable::~TokenTable() = default;

int64_t TokenTable::vocab_size() const { return impl_->info.GetVocabSize(); }

}  // namespace switchyard
