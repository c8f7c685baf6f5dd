// The "pre_tokenizer" of tokenizer.json: splits a normalized text into words; merges stay within a
// word.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

namespace switchyard {

struct Words {
  std::string text;
  std::vector<TextRange> pieces;  // ordered, disjoint, not empty; text outside of them was removed
  bool starts_input;  // true if text[0] is the start of the whole input, before any special token
};

// Immutable, thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void Apply(Words* words) const = 0;
};

// Returns null for a null node. Throws Error for types other than Sequence, Split, ByteLevel,
// Metaspace, Digits, Punctuation, CharDelimiterSplit, Whitespace and WhitespaceSplit.
std::unique_ptr<PreTokenizer> MakePreTokenizer(const JsonNode& node, int depth = 0);

}  // namespace switchyard
