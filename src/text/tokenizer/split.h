// What becomes of the delimiters where a text is split.
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
  kContiguous,          // as isolated, but neighbouring delimiters stay in one piece
};

SplitBehavior ReadSplitBehavior(const JsonNode& node);

// A stretch of text that either is a delimiter or lies between two.
struct SplitSpan {
  TextRange range;
  bool delimiter;
};

// Spans that cover [0, size): `delimiters` (ordered, disjoint) and what lies between; `invert`
// swaps the roles.
std::vector<SplitSpan> CoverWithSpans(const std::vector<TextRange>& delimiters, size_t size,
                                      bool invert);

// One span for each character.
std::vector<SplitSpan> SpanPerCharacter(std::string_view text,
                                        const std::function<bool(char32_t)>& is_delimiter);

// Appends the non-empty pieces, moved by `offset`.
void AppendPieces(const std::vector<SplitSpan>& spans, SplitBehavior behavior, size_t offset,
                  std::vector<TextRange>* pieces);

}  // namespace switchyard
