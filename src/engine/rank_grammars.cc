#include "engine/rank_grammars.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "grammar/compiled_grammar.h"

namespace switchyard {

void RankGrammars::SetVocabulary(std::string bytes) {
  grammars_.clear();
  table_ = std::async(std::launch::async, [bytes = std::move(bytes)] {
             return std::make_shared<const TokenTable>(GrammarVocabulary::Decode(bytes));
           }).share();
}

void RankGrammars::Define(uint64_t id, std::string bytes) {
  CHECK(table_.valid());  // the front sends the vocabulary first
  grammars_[id] = std::async(std::launch::async, [bytes = std::move(bytes), table = table_] {
                    return CompiledGrammar::FromBytes(bytes, *table.get());
                  }).share();
}

std::optional<RankGrammars::Pending> RankGrammars::Find(uint64_t id) const {
  const auto found = grammars_.find(id);
  return found == grammars_.end() ? std::nullopt : std::optional(found->second);
}

void SequenceGrammar::Begin() {
  matcher_.emplace(compiled_.get());
  for (const int32_t token : std::exchange(accepted_, {})) {
    if (!matcher_->Accept(token))
      throw Invalid("the output so far has token {}, which the grammar does not allow", token);
  }
}

bool SequenceGrammar::FillMask(std::span<uint32_t> mask) {
  if (!failure_.empty()) return false;
  if (!next_mask_.empty()) {
    CHECK_EQ(mask.size(), next_mask_.size());
    std::ranges::copy(next_mask_, mask.begin());
    return true;
  }
  try {
    if (!matcher_) Begin();
    if (matcher_->FillMask(mask)) return true;
    failure_ = "the grammar allows none of the model's tokens at this point of the output";
  } catch (const Error& e) {
    failure_ = e.what();
  }
  return false;
}

std::vector<int32_t> SequenceGrammar::Forced(int64_t most, std::span<const int32_t> output) {
  if (!failure_.empty() || !matcher_ || !forces_) return {};
  try {
    return ForcedTokens(*matcher_, most, &next_mask_);
  } catch (const Error&) {
    // The request does not fail: the state that the library cannot handle may lie beyond the end of
    // the output.
    forces_ = false;
    Restart(output);
  }
  return {};
}

void SequenceGrammar::Restart(std::span<const int32_t> output) {
  next_mask_.clear();
  matcher_.reset();
  accepted_.assign(output.begin(), output.end());
}

template <typename Look>
void SequenceGrammar::LookAhead(std::span<const int32_t> drafts, std::span<const int32_t> output,
                                const Look& look) {
  if (!failure_.empty() || !matcher_ || !looks_ahead_) return;
  if (matcher_->grammar().has_budgets()) return;  // see ForcedTokens
  try {
    int64_t allowed = 0;
    for (const int32_t token : drafts) {
      if (!matcher_->Accept(token)) break;
      ++allowed;
    }
    look(allowed);
    matcher_->Rollback(allowed);
  } catch (const Error&) {
    looks_ahead_ = false;
    Restart(output);
  }
}

bool SequenceGrammar::FillMaskAfter(std::span<const int32_t> drafts,
                                    std::span<const int32_t> output, std::span<uint32_t> mask) {
  bool filled = false;
  LookAhead(drafts, output, [&](int64_t allowed) {
    filled = allowed == std::ssize(drafts) && !matcher_->ended() && matcher_->FillMask(mask);
  });
  return filled && looks_ahead_;
}

int64_t SequenceGrammar::CountAllowed(std::span<const int32_t> drafts,
                                      std::span<const int32_t> output) {
  int64_t count = std::ssize(drafts);
  LookAhead(drafts, output, [&](int64_t allowed) { count = allowed; });
  return count;
}

void SequenceGrammar::Accept(int32_t token) {
  if (!failure_.empty()) return;
  next_mask_.clear();
  try {
    if (!matcher_) Begin();  // FillMask has not run if another pipeline stage samples the tokens
    if (!matcher_->Accept(token))
      failure_ = fmt::format("token {} was sampled, which the grammar does not allow", token);
  } catch (const Error& e) {
    failure_ = e.what();
  }
}

// If a grammar has budgets, XGrammar's state changes when a mask is filled, so this object fills
// the masks too.
void SequenceGrammar::Follow(int32_t token, std::span<uint32_t> scratch) {
  if (!failure_.empty()) return;
  try {
    if (!matcher_) Begin();
    if (matcher_->grammar().has_budgets()) matcher_->FillMask(scratch);
  } catch (const Error& e) {
    failure_ = e.what();
  }
  Accept(token);
}

void SequenceGrammar::Rollback(int64_t count) {
  if (count == 0 || !matcher_) return;
  next_mask_.clear();
  matcher_->Rollback(count);
}

}  // namespace switchyard
