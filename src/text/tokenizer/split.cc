#include "text/tokenizer/split.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

// True if a span belongs to the same piece as the previously visited span. Spans are visited from
// the start, but for kMergedWithNext from the end.
bool Joins(const SplitSpan& span, bool previous_delimiter, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kMergedWithNext:
      return span.delimiter && !previous_delimiter;  // two delimiters are two pieces
    case SplitBehavior::kContiguous:
      return span.delimiter == previous_delimiter;
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      return false;
  }
  return false;
}

}  // namespace

SplitBehavior ReadSplitBehavior(const JsonNode& node) {
  const std::string name = node.String();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw Invalid("{}: split behavior '{}' is not supported", node.where(), name);
}

std::vector<SplitSpan> CoverWithSpans(const std::vector<TextRange>& delimiters, size_t size,
                                      bool invert) {
  std::vector<SplitSpan> spans;
  spans.reserve(2 * delimiters.size() + 1);
  size_t done = 0;
  for (const TextRange& range : delimiters) {
    if (done != range.begin) spans.push_back({{done, range.begin}, invert});
    spans.push_back({range, !invert});
    done = range.end;
  }
  if (done != size) spans.push_back({{done, size}, invert});
  return spans;
}

std::vector<SplitSpan> SpanPerCharacter(std::string_view text,
                                        const std::function<bool(char32_t)>& is_delimiter) {
  std::vector<SplitSpan> spans;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const bool delimiter = is_delimiter(NextCharacter(text, &i));
    if (!delimiter && !spans.empty() && !spans.back().delimiter) {
      spans.back().range.end = i;
    } else {
      spans.push_back({{begin, i}, delimiter});
    }
  }
  return spans;
}

void AppendPieces(const std::vector<SplitSpan>& spans, SplitBehavior behavior, size_t offset,
                  std::vector<TextRange>* pieces) {
  const size_t first = pieces->size();
  const bool backward = behavior == SplitBehavior::kMergedWithNext;
  bool previous_delimiter = false;
  for (size_t i = 0; i < spans.size(); ++i) {
    const SplitSpan& span = spans[backward ? spans.size() - 1 - i : i];
    const TextRange range{offset + span.range.begin, offset + span.range.end};
    if (pieces->size() > first && Joins(span, previous_delimiter, behavior)) {
      (backward ? pieces->back().begin : pieces->back().end) = backward ? range.begin : range.end;
    } else if (behavior != SplitBehavior::kRemoved || !span.delimiter) {
      pieces->push_back(range);
    }
    previous_delimiter = span.delimiter;
  }
  const auto begin = pieces->begin() + static_cast<std::ptrdiff_t>(first);
  if (backward) std::reverse(begin, pieces->end());
  pieces->erase(std::remove_if(begin, pieces->end(),
                               [](const TextRange& piece) { return piece.size() == 0; }),
                pieces->end());
}

}  // namespace switchyard
