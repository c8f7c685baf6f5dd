#include "text/tokenizer/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/check.h"
#include "core/error.h"
#include "text/tokenizer/regex_syntax.h"
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

}  // namespace switchyard
