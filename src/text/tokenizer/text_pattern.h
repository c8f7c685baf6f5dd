// Patterns of tokenizers: regular expressions, their translation to PCRE2, and splits of texts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

struct pcre2_real_code_8;

namespace switchyard {

// The "pattern" of tokenizer.json, a literal string or a regular expression, compiled.

// Immutable, thread-safe.
class TextPattern {
 public:
  // `where` names file and key in errors. Literal and Regex throw Error for an empty, malformed or
  // oversized pattern.
  static TextPattern Literal(std::string_view text, std::string_view where);
  static TextPattern Regex(std::string_view oniguruma, std::string_view where);

  // All non-overlapping matches in valid UTF-8 from left to right. Skips an empty match directly
  // after another match. Throws Error if the expression exceeds its backtracking limit on this
  // text.
  std::vector<TextRange> FindAll(std::string_view text) const;

  // The text of a literal pattern; empty for a regular expression.
  const std::string& literal() const { return literal_; }

 private:
  TextPattern(std::string literal, std::string where)
      : literal_(std::move(literal)), where_(std::move(where)) {}

  std::vector<TextRange> FindAllLiteral(std::string_view text) const;
  std::vector<TextRange> FindAllRegex(std::string_view text) const;

  std::string literal_;
  std::string where_;
  std::shared_ptr<pcre2_real_code_8> code_;  // null for a literal
};

// {"String": "…"} or {"Regex": "…"}, the patterns of normalizers, pre-tokenizers and decoders.

TextPattern ReadPattern(const JsonNode& node);

// Splits a text, with different treatments of the delimiters.

enum class SplitBehavior {
  kIsolated,            // "a-b" at "-" -> a, -, b
  kRemoved,             // a, b
  kMergedWithPrevious,  // a-, b
  kMergedWithNext,      // a, -b
  kContiguous,          // like kIsolated, but adjacent delimiters form one piece
};

SplitBehavior ReadSplitBehavior(const JsonNode& node);

// A part of a text: a delimiter, or the text between two delimiters.
struct SplitSpan {
  TextRange range;
  bool delimiter;
};

// Spans that cover [0, size): `delimiters` (ordered, disjoint) and the text between them. With
// `invert`, the text between them counts as delimiters.
std::vector<SplitSpan> CoverWithSpans(const std::vector<TextRange>& delimiters, size_t size,
                                      bool invert);

// One span for each character.
std::vector<SplitSpan> SpanPerCharacter(std::string_view text,
                                        const std::function<bool(char32_t)>& is_delimiter);

// Appends the non-empty pieces, shifted by `offset`.
void AppendPieces(const std::vector<SplitSpan>& spans, SplitBehavior behavior, size_t offset,
                  std::vector<TextRange>* pieces);

// Translates the regular expressions of tokenizer.json to PCRE2 syntax.

// Hugging Face matches with Oniguruma in its Ruby syntax. These differences are translated:
// - the Unicode meaning of \s \w \h \v, \p{Han} as script (not script extensions), long category
//   names;
// - nested classes and their intersection with &&;
// - (?m) for "dot matches newline", the scope of (?i), {n,m}+ as a repeated group (possessive in
//   PCRE2), {,n}.
//
// Compile the result with UTF, UCP and MULTILINE. Throws Error for malformed patterns that it
// detects; `where` names file and key.
std::string OnigurumaToPcre2(std::string_view pattern, std::string_view where);

// Names of Unicode properties in regular expressions.

// PCRE2's name of the property that Oniguruma calls `name`. `name` is in lower case, without
// spaces, hyphens and underscores: "lowercaseletter" -> "Ll", "han" -> "sc:han" (PCRE2's plain
// "Han" means script extensions).
std::string Pcre2PropertyName(std::string_view name);

}  // namespace switchyard
