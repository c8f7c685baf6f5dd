// The "added_tokens" of tokenizer.json: tokens that are cut out of a text before the model sees it.
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
  std::string normalized_content;  // what `normalized` tokens match, and decode as
  bool single_word;                // only between characters that are no word characters
  bool lstrip;                     // swallows the spaces before, after
  bool rstrip;
  bool normalized;  // matched after the normalizer, else before
  bool special;     // control token: left out when decoding skips special tokens, never made of
                    // untrusted text
};

// A stretch of text: one added token, or (id -1) what lies between them.
struct TextPart {
  TextRange range;
  int32_t id;
};

// Finds the leftmost, there the longest of a set of strings. Immutable once built.
class StringMatcher {
 public:
  // Looking for a match reads up to as many bytes at each place of a text.
  static constexpr size_t kMaxBytes = 1024;
  // Several times those of the largest vocabularies; about 50 bytes of memory each.
  static constexpr size_t kMaxNodes = size_t{8} << 20;

  // The empty string and a string added before do not count. Throws Error kInvalid for strings of
  // more than kMaxBytes, and where all have more than kMaxNodes bytes besides common prefixes.
  void Add(std::string_view text, int32_t value);

  // The longest match at `begin` for which accept(value, end) holds: returns its value and sets
  // *end, or -1.
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
  std::vector<int32_t> values_;                     // of the trie's nodes, -1: none ends here
  std::unordered_map<uint64_t, int32_t> children_;  // node << 8 | byte -> node
};

// Immutable; any number of threads.
class AddedTokens {
 public:
  // `model`: the tokens that exist already; `normalizer` may be null. Throws Error for malformed
  // entries and for an id or a token that stands for something else already.
  AddedTokens(const JsonNode& list, const Vocabulary& model, const TextNormalizer* normalizer);

  // Null for an id that is no added token.
  const AddedToken* Find(int32_t id) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Whether a special token may be found after the normalizer, which then has to keep marks.
  bool has_normalized_special() const { return has_normalized_special_; }

  // Cuts a text as it came in, at the tokens that are not `normalized`.
  std::vector<TextPart> CutRaw(const MarkedText& text) const { return Cut(text, raw_); }
  // Cuts a normalized text at the others.
  std::vector<TextPart> CutNormalized(const MarkedText& text) const {
    return Cut(text, normalized_);
  }

 private:
  std::vector<TextPart> Cut(const MarkedText& text, const StringMatcher& matcher) const;

  std::vector<AddedToken> tokens_;
  Vocabulary vocabulary_;
  std::unordered_map<int32_t, size_t> index_of_id_;
  StringMatcher raw_;  // values: indices of tokens_
  StringMatcher normalized_;
  bool has_normalized_special_ = false;
};

}  // namespace switchyard
