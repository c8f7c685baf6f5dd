// The "pre_tokenizer" of tokenizer.json: cuts a normalized text into the words within which merges
// happen.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

namespace switchyard {

struct Words {
  std::string text;
  std::vector<TextRange> pieces;  // ordered, disjoint, none empty; what they leave out was removed
  bool starts_input;  // text[0] is where the whole input starts, before any special token
};

// Immutable; any number of threads.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void Apply(Words* words) const = 0;
};

// Null for a null node. Throws Error for types other than Sequence, Split, ByteLevel, Metaspace,
// Digits, Punctuation, CharDelimiterSplit, Whitespace and WhitespaceSplit.
std::unique_ptr<PreTokenizer> MakePreTokenizer(const JsonNode& node, int depth = 0);

}  // namespace switchyard
