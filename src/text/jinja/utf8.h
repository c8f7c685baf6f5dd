// Python's view of a str: indexing by code points, white space, case and character classes. Every
// string here is valid UTF-8. Decoding is in text/tokenizer/unicode.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/tokenizer/unicode.h"

namespace switchyard::jinja {

size_t CountCodePoints(std::string_view bytes);

// Byte offset of code point `index` at or after byte `from`; bytes.size() if there are fewer.
size_t OffsetOfCodePoint(std::string_view bytes, size_t index, size_t from = 0);

bool IsSpace(char32_t code_point);  // str.isspace: the white space of strip() and \s

// Offset of the first non-space byte at or after `from`; bytes.size() if there is none. TrimmedEnd:
// offset after the last one; 0 if there is none.
size_t SkipSpace(std::string_view bytes, size_t from = 0);
size_t TrimmedEnd(std::string_view bytes);

// One-to-one Unicode case mapping. Characters whose mapping changes the length (U+00DF) stay
// unchanged, unlike in Python.
std::string ToUpper(std::string_view bytes);
std::string ToLower(std::string_view bytes);

// kUnprintable: the characters that repr() escapes, and the space.
enum class CharClass { kLetter, kDecimal, kNumeric, kUpper, kLower, kUnprintable };
bool IsInClass(char32_t code_point, CharClass char_class);

}  // namespace switchyard::jinja
