// Normalizers of tokenizers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/error.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

namespace switchyard {

// The "normalizer" of tokenizer.json: rewrites a text before it is pre-tokenized and merged.

// Immutable, thread-safe.
class TextNormalizer {
 public:
  virtual ~TextNormalizer() = default;
  virtual MarkedText Apply(MarkedText text) const = 0;
};

// Returns null for a null node. Throws Error for types other than Sequence, NFC, NFD, NFKC, NFKD,
// Prepend, Replace, Lowercase, Strip, StripAccents and Precompiled.
std::unique_ptr<TextNormalizer> MakeNormalizer(const JsonNode& node, int depth = 0);

// The normalizer of type Precompiled: SentencePiece's table of character sequences and their
// replacements ("precompiled_charsmap").

// `charsmap`: a little-endian length, a Darts-clone double array of that many bytes, and the
// NUL-terminated replacement texts, to which the values of the array point. Texts are rewritten as
// in the library tokenizers (spm_precompiled), which looks up grapheme clusters first. Throws Error
// that names `where` for a malformed table.
std::unique_ptr<TextNormalizer> MakePrecompiledNormalizer(std::string charsmap,
                                                          const std::string& where);

// Unicode normalization forms (UAX 15) with utf8proc's tables of Unicode 15. Hugging Face's tables
// are older: characters added since then may differ.

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// A composed character is untrusted if any of its parts was. Time O(n log n), for any number of
// combining marks.
MarkedText ToNormalizationForm(const MarkedText& text, NormalizationForm form);

// Limits the size of a text that a tokenizer.json rewrites.

// Without this limit, a few lines of JSON could fill the memory with steps that each double the
// text.
inline constexpr size_t kMaxRewrittenBytes = size_t{64} << 20;

// Throws Error if a rewriting step makes a text longer (`before` and `after` in bytes) and `after`
// exceeds the limit.
inline void CheckRewrittenSize(size_t before, size_t after) {
  if (after <= before || after <= kMaxRewrittenBytes) return;
  throw Invalid(
      "tokenizer.json: its replacements expand a text to {} bytes from {}; want at most {}", after,
      before, kMaxRewrittenBytes);
}

}  // namespace switchyard
