#include "text/tokenizer/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;

std::string Pcre2Message(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return std::to_string(code);
  return reinterpret_cast<const char*>(buffer);
}

using CompileContext =
    std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>;
using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

int Match(const pcre2_code* code, std::string_view text, size_t start, pcre2_match_data* match) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found =
      pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, match, nullptr);
  if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
  // If the JIT's stack of 32 KiB is too small, matches with the interpreter, which is slower but
  // keeps its backtracking points on the heap.
  return pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                     nullptr);
}

void CheckSize(std::string_view pattern, std::string_view where) {
  if (pattern.empty()) throw Invalid("{}: the pattern is empty", where);
  if (pattern.size() > kMaxPatternBytes) {
    throw Invalid("{}: the pattern has {} bytes, want at most {}", where, pattern.size(),
                  kMaxPatternBytes);
  }
}

}  // namespace

TextPattern TextPattern::Literal(std::string_view text, std::string_view where) {
  CheckSize(text, where);
  return TextPattern(std::string(text), std::string(where));
}

TextPattern TextPattern::Regex(std::string_view oniguruma, std::string_view where) {
  CheckSize(oniguruma, where);
  const std::string pattern = OnigurumaToPcre2(oniguruma, where);
  const CompileContext context(pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);

  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options, &error, &offset, context.get());
  if (code == nullptr) {
    throw Invalid("{}: regular expression '{}' does not compile: {}", where, oniguruma,
                  Pcre2Message(error));
  }
  TextPattern out({}, std::string(where));
  out.code_.reset(code, &pcre2_code_free);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter is used
  return out;
}

std::vector<TextRange> TextPattern::FindAll(std::string_view text) const {
  return code_ == nullptr ? FindAllLiteral(text) : FindAllRegex(text);
}

std::vector<TextRange> TextPattern::FindAllLiteral(std::string_view text) const {
  std::vector<TextRange> matches;
  for (size_t at = text.find(literal_); at != std::string_view::npos;) {
    matches.push_back({at, at + literal_.size()});
    at = text.find(literal_, at + literal_.size());
  }
  return matches;
}

std::vector<TextRange> TextPattern::FindAllRegex(std::string_view text) const {
  const MatchData match(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  CHECK(match != nullptr);
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
  std::vector<TextRange> matches;
  for (size_t start = 0; start <= text.size();) {
    const int found = Match(code_.get(), text, start, match.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw Invalid("{}: the regular expression fails on this text: {}", where_,
                    Pcre2Message(found));

    const TextRange range{bounds[0], bounds[1]};
    if (range.size() == 0 && !matches.empty() && matches.back().end == range.end) {
      if (start == text.size()) break;
      NextCharacter(text, &start);
      continue;
    }
    matches.push_back(range);
    start = range.end;
  }
  return matches;
}

TextPattern ReadPattern(const JsonNode& node) {
  const JsonNode literal = node["String"];
  const JsonNode regex = node["Regex"];
  if (literal.is_null() == regex.is_null())
    throw Invalid("{}: want either \"String\" or \"Regex\"", node.where());
  return regex.is_null() ? TextPattern::Literal(literal.String(), literal.where())
                         : TextPattern::Regex(regex.String(), regex.where());
}

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
