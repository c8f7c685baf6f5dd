// The tokens that a grammar may use, as bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The tokens of a model by id. The front derives it from the tokenizer and sends it to the ranks.
struct GrammarVocabulary {
  // [vocab] The bytes that each token adds to the output. Empty: an id without a token, which is
  // never allowed. The bytes of a special token are SpecialTokenBytes: no text of a grammar matches
  // them. A special token is allowed in the free text of a structural tag, and where a tag names
  // the token's id.
  std::vector<std::string> tokens;
  std::vector<int32_t> stop_ids;  // allowed exactly where the grammar may end

  std::string Encode() const;
  // Throws Error kInvalid on malformed bytes.
  static GrammarVocabulary Decode(std::string_view bytes);
};

// Begins with 0xff, which is not part of any UTF-8 text.
inline std::string SpecialTokenBytes(std::string_view token) { return '\xff' + std::string(token); }

// A vocabulary prepared for grammars: sorted, with ranges of common prefixes. Immutable, shared by
// all compiled grammars and matchers of a process.
class TokenTable {
 public:
  // Throws Error kInvalid if there is no stop id, or if a stop id is outside of the vocabulary.
  explicit TokenTable(const GrammarVocabulary& vocabulary);
  ~TokenTable();

  int64_t vocab_size() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
};

}  // namespace switchyard
