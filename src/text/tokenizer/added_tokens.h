// The "added_tokens" of tokenizer.json: tokens that are matched in a text before the model encodes
// it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {

struct AddedToken {
  int32_t id;
  std::string content;
  std::string normalized_content;  // the text that `normalized` tokens match and decode to
  bool single_word;                // matches only between non-word characters
  bool lstrip;                     // consumes the spaces before the token
  bool rstrip;                     // consumes the spaces after the token
  bool normalized;                 // true: matched after the normalizer; false: before it
  // A control token: omitted when decoding skips special tokens, and never matched in untrusted
  // text.
  bool special;
};

// A part of a text: an added token, or text between two added tokens (id -1).
struct TextPart {
  TextRange range;
  int32_t id;
};

// Finds the leftmost match of a set of strings, and the longest one at that position. Immutable
// once built.
class StringMatcher {
 public:
  // Maximum length of a string: a search reads up to this many bytes at each position of a text.
  static constexpr size_t kMaxBytes = 1024;
  // Maximum number of trie nodes: several times that of the largest vocabularies. A node takes
  // about 50 bytes of memory.
  static constexpr size_t kMaxNodes = size_t{8} << 20;

  // Ignores the empty string and strings that were added before. Throws Error kInvalid that begins
  // with `where` for a string of more than kMaxBytes bytes, or if the trie of all strings would
  // have more than kMaxNodes nodes.
  void Add(std::string_view text, int32_t value, const std::string& where);

  // Returns the value of the longest match at `begin` for which accept(value, end) is true, and
  // sets *end; -1 if there is none.
  template <typename Accept>
  int32_t LongestAt(std::string_view text, size_t begin, const Accept& accept, size_t* end) const {
    int32_t best = -1;
    int32_t node = root_[static_cast<uint8_t>(text[begin])];
    for (size_t i = begin + 1; node >= 0; ++i) {
      const int32_t value = values_[static_cast<size_t>(node)];
      if (value >= 0 && accept(value, i)) {
        best = value;
        *end = i;
      }
      if (i == text.size()) break;
      node = Child(node, text[i]);
    }
    return best;
  }

  bool empty() const { return values_.empty(); }

 private:
  static std::array<int32_t, 256> MakeRoot() {
    std::array<int32_t, 256> root;
    root.fill(-1);
    return root;
  }

  int32_t Child(int32_t node, char byte) const;

  std::array<int32_t, 256> root_ = MakeRoot();      // first byte -> node, -1: none
  std::vector<int32_t> values_;                     // [trie node]; -1: no string ends here
  std::unordered_map<uint64_t, int32_t> children_;  // node << 8 | byte -> node
};

// Immutable, thread-safe.
class AddedTokens {
 public:
  // `model`: the vocabulary of the model; `normalizer` may be null. Throws Error for malformed
  // entries, and for an id or a token that is already assigned differently.
  AddedTokens(const JsonNode& list, const Vocabulary& model, const TextNormalizer* normalizer);

  // Returns null for an id that is not an added token.
  const AddedToken* Find(int32_t id) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

  // True if a special token is matched after the normalizer, which then has to keep the trust
  // marks.
  bool has_normalized_special() const { return has_normalized_special_; }

  // Splits a raw text at the tokens that are not `normalized`.
  std::vector<TextPart> CutRaw(const MarkedText& text) const { return Cut(text, raw_); }
  // Splits a normalized text at the `normalized` tokens.
  std::vector<TextPart> CutNormalized(const MarkedText& text) const {
    return Cut(text, normalized_);
  }

 private:
  std::vector<TextPart> Cut(const MarkedText& text, const StringMatcher& matcher) const;

  std::vector<AddedToken> tokens_;
  Vocabulary vocabulary_;
  std::unordered_map<int32_t, size_t> index_of_id_;
  StringMatcher raw_;  // its values are indices of tokens_
  StringMatcher normalized_;
  bool has_normalized_special_ = false;
};

}  // namespace switchyard
