// The grammars that the front has defined for the ranks, and the state of one output.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compiled_grammar.h"

namespace switchyard {

// Owned by the rank's engine, used by the rank's thread. Grammars are read on separate threads,
// while the prompt is computed. All ranks of a group wait for a grammar at the same point, so the
// time that it takes changes no decision.
class RankGrammars {
 public:
  using Pending = std::shared_future<std::shared_ptr<const CompiledGrammar>>;

  void SetVocabulary(std::string bytes);           // GrammarTokens
  void Define(uint64_t id, std::string bytes);     // DefineGrammar
  void Drop(uint64_t id) { grammars_.erase(id); }  // DropGrammar
  std::optional<Pending> Find(uint64_t id) const;

 private:
  std::shared_future<std::shared_ptr<const TokenTable>> table_;
  std::map<uint64_t, Pending> grammars_;
};

// The output of one sequence in its grammar. A retracted sequence keeps this object, because it
// keeps its tokens. An error is recorded, and ends the sequence when its next token is processed.
class SequenceGrammar {
 public:
  // `accepted`: the output so far, of a request that is sent again.
  explicit SequenceGrammar(RankGrammars::Pending compiled, std::vector<int32_t> accepted = {})
      : compiled_(std::move(compiled)), accepted_(std::move(accepted)) {}

  // Writes the mask of the next token [MaskWords(vocab)]. Returns false, and sets `failure`, if no
  // token is allowed. Waits until the grammar has been read.
  bool FillMask(std::span<uint32_t> mask);
  // ForcedTokens (grammar/forced_tokens.h) after `output`, all tokens so far.
  std::vector<int32_t> Forced(int64_t most, std::span<const int32_t> output);
  // Appends a token that the last mask allows.
  void Accept(int32_t token);
  // Removes the last `count` tokens.
  void Rollback(int64_t count);
  bool ended() const { return matcher_ && matcher_->ended(); }
  const std::string& failure() const { return failure_; }

 private:
  void Begin();  // waits for the grammar; its matcher then accepts `accepted_`

  RankGrammars::Pending compiled_;
  std::vector<int32_t> accepted_;
  std::optional<GrammarMatcher> matcher_;
  std::vector<uint32_t> next_mask_;  // mask of the next token, if Forced has filled it; else empty
  bool forces_ = true;               // false: Forced returns nothing
  std::string failure_;
};

}  // namespace switchyard
