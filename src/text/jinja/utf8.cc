#include "text/jinja/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace switchyard::jinja {
namespace {

constexpr char32_t kSharpS = 0xDF;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

size_t CountCodePoints(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return !IsContinuation(c); }));
}

size_t OffsetOfCodePoint(std::string_view bytes, size_t index, size_t from) {
  size_t at = from;
  while (at < bytes.size() && index > 0) {
    ++at;
    while (at < bytes.size() && IsContinuation(bytes[at])) ++at;
    --index;
  }
  return at;
}

bool IsSpace(char32_t c) {
  // Python adds the four ASCII separators to Unicode's White_Space.
  return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F);
}

size_t SkipSpace(std::string_view bytes, size_t from) {
  while (from < bytes.size()) {
    size_t next = from;
    if (!IsSpace(NextCharacter(bytes, &next))) break;
    from = next;
  }
  return from;
}

size_t TrimmedEnd(std::string_view bytes) {
  size_t end = bytes.size();
  while (end > 0) {
    size_t start = end;
    if (!IsSpace(PreviousCharacter(bytes, &start))) break;
    end = start;
  }
  return end;
}

std::string ToUpper(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    char32_t c = NextCharacter(bytes, &at);
    if (c == kSharpS) {
      out += "SS";
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), &out);
    }
  }
  return out;
}

std::string ToLower(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    auto c = static_cast<utf8proc_int32_t>(NextCharacter(bytes, &at));
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(c)), &out);
  }
  return out;
}

bool IsInClass(char32_t c, CharClass char_class) {
  utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  auto between = [category](int first, int last) { return category >= first && category <= last; };
  switch (char_class) {
    case CharClass::kLetter:
      return between(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
    case CharClass::kDecimal:
      return category == UTF8PROC_CATEGORY_ND;
    case CharClass::kNumeric:
      return between(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
    case CharClass::kUpper:
      return category == UTF8PROC_CATEGORY_LU;
    case CharClass::kLower:
      return category == UTF8PROC_CATEGORY_LL;
    case CharClass::kUnprintable:
      break;
  }
  return category == UTF8PROC_CATEGORY_CN || between(UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_CO);
}

}  // namespace switchyard::jinja
