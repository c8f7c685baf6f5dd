// The "normalizer" of tokenizer.json: rewrites a text before it is pre-tokenized and merged.
#pragma once

#include <memory>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

namespace switchyard {

// Immutable, thread-safe.
class TextNormalizer {
 public:
  virtual ~TextNormalizer() = default;
  virtual MarkedText Apply(MarkedText text) const = 0;
};

// Returns null for a null node. Throws Error for types other than Sequence, NFC, NFD, NFKC, NFKD,
// Prepend, Replace, Lowercase, Strip, StripAccents and Precompiled.
std::unique_ptr<TextNormalizer> MakeNormalizer(const JsonNode& node, int depth = 0);

}  // namespace switchyard
