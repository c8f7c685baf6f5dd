// A grammar compiled for a vocabulary, the matcher of one output, and the tokens that it forces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/vocabulary.h"

namespace switchyard {

// A grammar compiled for a vocabulary, and the matcher of one output.

// Immutable; shared by all matchers of the grammar. Holds, for each state of the grammar, the part
// of the token mask that does not depend on the enclosing rules.
class CompiledGrammar {
 public:
  // The inverse of ToBytes, with a table of the same vocabulary. Throws Error kInvalid on malformed
  // bytes.
  static std::shared_ptr<const CompiledGrammar> FromBytes(std::string_view bytes,
                                                          const TokenTable& table);
  std::string ToBytes() const;
  size_t memory_bytes() const;
  int64_t vocab_size() const;
  // Whether a rule limits the number of its tokens or characters.
  bool has_budgets() const { return has_budgets_; }

  struct Impl;
  explicit CompiledGrammar(std::unique_ptr<const Impl> impl);
  ~CompiledGrammar();
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
  const bool has_budgets_;
};

// Number of words of a mask with one bit for each token.
constexpr int64_t MaskWords(int64_t vocab) { return (vocab + 31) / 32; }
// Whether bit `id` of a mask is set.
constexpr bool MaskAllows(std::span<const uint32_t> mask, int64_t id) {
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

// The state of one output in its grammar. Belongs to one sequence; single-threaded. Its methods
// throw Error kInvalid if the library finds a state that it cannot handle.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Appends a token. Returns false, and changes nothing, if the grammar does not allow it.
  bool Accept(int32_t token);
  // Removes the last `count` accepted tokens, the stop token included.
  void Rollback(int64_t count);
  // Sets the bits of the allowed tokens in `mask` [MaskWords(vocab)], and clears all others. Stop
  // tokens are allowed if the output so far is complete. Returns false if no token is allowed.
  // Must not be called after a stop token.
  bool FillMask(std::span<uint32_t> mask);
  // The bytes with which every continuation of the output begins, at most kMostForcedText. Empty if
  // there are none, or if the output may end here. Tokens that a grammar names by their ids are not
  // considered. Must not be called after a stop token.
  static constexpr size_t kMostForcedText = 256;  // as scripts/third_party.py sets it
  std::string ForcedText();
  // Whether the output so far is complete.
  bool CanEnd() const;
  // Whether a stop token was accepted.
  bool ended() const;
  int64_t length() const;  // number of accepted tokens
  const CompiledGrammar& grammar() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The tokens that continue an output where its grammar leaves one continuation.

// A guess of the next tokens, at most `most`. The forced text is divided into the longest tokens of
// the vocabulary, from left to right, as most tokenizers do with most texts. The model may tokenize
// it in another way. The last token is left out if the grammar also allows a longer token that
// begins with it. Tokens without text are included if they are the only ones allowed. Stop tokens
// are never included.
//
// Does not change the matcher's state, unless it throws the errors of GrammarMatcher. If no token
// is returned, `mask` becomes the mask of the next token, [MaskWords(vocab)]. It becomes empty if
// it was not needed or allows no token.
//
// Returns no tokens for a grammar with budgets (max_tokens, max_chars), because XGrammar cannot
// roll back the end of a rule at its budget.
std::vector<int32_t> ForcedTokens(GrammarMatcher& matcher, int64_t most,
                                  std::vector<uint32_t>* mask);

}  // namespace switchyard
