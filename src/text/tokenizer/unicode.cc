#include "text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

namespace switchyard {
namespace {

bool Between(char32_t character, char32_t first, char32_t last) {
  return first <= character && character <= last;
}

utf8proc_category_t Category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

}  // namespace

char32_t NextCharacter(std::string_view text, size_t* position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[*position + i]); };
  const uint8_t lead = byte(0);
  char32_t character = lead;
  size_t length = 1;
  if (lead >= 0xF0) {
    character =
        (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    length = 4;
  } else if (lead >= 0xE0) {
    character = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    length = 3;
  } else if (lead >= 0xC0) {
    character = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    length = 2;
  }
  *position += length;
  return character;
}

char32_t PreviousCharacter(std::string_view text, size_t* position) {
  do {
    --*position;
  } while ((static_cast<uint8_t>(text[*position]) & 0xC0) == 0x80);
  size_t start = *position;
  return NextCharacter(text, &start);
}

void AppendUtf8(char32_t character, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

Utf8Sequence ScanUtf8(std::string_view bytes, size_t position) {
  const auto lead = static_cast<uint8_t>(bytes[position]);
  if (lead < 0x80) return {Utf8Sequence::kValid, 1};
  if (!Between(lead, 0xC2, 0xF4)) return {Utf8Sequence::kInvalid, 1};

  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF
  // (Unicode, table 3-7).
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (position + i == bytes.size()) return {Utf8Sequence::kCut, i};
    if (!Between(static_cast<uint8_t>(bytes[position + i]), low, high))
      return {Utf8Sequence::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Sequence::kValid, length};
}

bool IsValidUtf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Sequence sequence = ScanUtf8(bytes, i);
    if (sequence.kind != Utf8Sequence::kValid) return false;
    i += sequence.length;
  }
  return true;
}

std::string Utf8Repair::Push(std::string_view bytes) {
  cut_.append(bytes);
  std::string text;
  size_t i = 0;
  while (i < cut_.size()) {
    const Utf8Sequence sequence = ScanUtf8(cut_, i);
    if (sequence.kind == Utf8Sequence::kCut) break;
    if (sequence.kind == Utf8Sequence::kValid) {
      text.append(cut_, i, sequence.length);
    } else {
      text.append(kReplacementCharacter);
    }
    i += sequence.length;
  }
  cut_.erase(0, i);
  return text;
}

std::string Utf8Repair::Finish() {
  std::string text(cut_.empty() ? std::string_view() : kReplacementCharacter);
  cut_.clear();
  return text;
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || Between(c, '\t', '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || Between(c, 0x2000, 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsNumeric(char32_t character) {
  return Between(Category(character), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80)
    return Between(c, '!', '/') || Between(c, ':', '@') || Between(c, '[', '`') ||
           Between(c, '{', '~');
  return Between(Category(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool IsWordCharacter(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join_Control, and the symbols with the property Alphabetic: circled and squared letters.
      return Between(c, 0x200C, 0x200D) || Between(c, 0x24B6, 0x24E9) ||
             Between(c, 0x1F130, 0x1F149) || Between(c, 0x1F150, 0x1F169) ||
             Between(c, 0x1F170, 0x1F189);
  }
}

bool IsNonspacingMark(char32_t character) { return Category(character) == UTF8PROC_CATEGORY_MN; }

void AppendLowercase(char32_t character, std::string* out) {
  if (character == 0x130) {  // İ: the only character whose lower case has more than one character
    out->append("i\u0307");
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
             out);
}

}  // namespace switchyard
