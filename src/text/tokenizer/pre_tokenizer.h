// Pre-tokenizers, and the alphabets that they and the decoders share: byte level and metaspace.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

namespace switchyard {

// GPT-2's byte-level alphabet: maps each byte to a printable character, so that any bytes can be
// written as text.

// Appends the characters of the bytes: "é\n" gives "Ã©Ċ".
void AppendByteLevel(std::string_view bytes, std::string* out);

// Converts one token back to bytes. A token with a character outside of the alphabet is returned as
// its own UTF-8 bytes.
std::string BytesOfByteLevel(std::string_view token);

// "Metaspace", a pre-tokenizer and a decoder: spaces are written as a visible character.

struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };

  std::string replacement;  // one character
  Prepend prepend;          // pieces that get a leading space: all, the first of the input, none
  bool split;
};

Metaspace ReadMetaspace(const JsonNode& node);

// The "pre_tokenizer" of tokenizer.json: splits a normalized text into words; merges stay within a
// word.

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
