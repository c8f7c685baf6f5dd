// Splits a text, with different treatments of the delimiters.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/marked_text.h"

namespace switchyard {

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

}  // namespace switchyard
