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

// Owned by the rank's engine, used by the rank's thread. Grammars are deserialized on separate
// threads, while the prompt is computed. All ranks of a group wait for a grammar at the same point,
// so scheduling does not depend on the time that this takes.
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
  // `accepted`: the output so far, if the front sends the request again
  // (EngineRequest::output_ids).
  explicit SequenceGrammar(RankGrammars::Pending compiled, std::vector<int32_t> accepted = {})
      : compiled_(std::move(compiled)), accepted_(std::move(accepted)) {}

  // Writes the mask of the next token [MaskWords(vocab)]. Returns false, and sets `failure`, if no
  // token is allowed. Waits until the grammar is deserialized.
  bool FillMask(std::span<uint32_t> mask);
  // ForcedTokens (grammar/compiled_grammar.h) after `output`, all tokens so far.
  std::vector<int32_t> Forced(int64_t most, std::span<const int32_t> output);
  // Writes the mask of the token after `drafts`. The drafts follow `output`, which has all tokens
  // so far. Changes no state. Returns false if no token can follow, or if the mask cannot be
  // computed.
  bool FillMaskAfter(std::span<const int32_t> drafts, std::span<const int32_t> output,
                     std::span<uint32_t> mask);
  // The number of leading drafts that the grammar allows after `output`. Changes no state.
  int64_t CountAllowed(std::span<const int32_t> drafts, std::span<const int32_t> output);
  // Appends a token that the last mask allows.
  void Accept(int32_t token);
  // Appends a token that another pipeline stage has sampled, with the mask of its own object.
  // `scratch` [MaskWords(vocab)].
  void Follow(int32_t token, std::span<uint32_t> scratch);
  // Removes the last `count` tokens.
  void Rollback(int64_t count);
  bool ended() const { return matcher_ && matcher_->ended(); }
  const std::string& failure() const { return failure_; }

 private:
  void Begin();  // waits for the grammar; its matcher then accepts `accepted_`
  // Accepts the leading `drafts` that the grammar allows, calls look(their number), and then
  // removes them from the matcher. If the library cannot handle a state, LookAhead has no effect
  // from then on. This is no error, because the state may lie beyond the end of the output.
  template <typename Look>
  void LookAhead(std::span<const int32_t> drafts, std::span<const int32_t> output,
                 const Look& look);
  // After an error of the library: a new matcher will accept `output` from its beginning.
  void Restart(std::span<const int32_t> output);

  RankGrammars::Pending compiled_;
  std::vector<int32_t> accepted_;
  std::optional<GrammarMatcher> matcher_;
  std::vector<uint32_t> next_mask_;  // mask of the next token, if Forced has filled it; else empty
  bool forces_ = true;               // false: Forced returns nothing
  bool looks_ahead_ = true;          // false: FillMaskAfter returns false, CountAllowed counts all
  std::string failure_;
};

}  // namespace switchyard
