// UTF-8 and character properties for tokenizers. Stateless except Utf8Repair. "Valid
// text" is valid UTF-8; other functions accept any bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace switchyard {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The character that starts at text[*position] of valid text; moves *position past it.
char32_t NextCharacter(std::string_view text, size_t* position);

// The character that ends at text[*position]; moves *position back to its start.
char32_t PreviousCharacter(std::string_view text, size_t* position);

void AppendUtf8(char32_t character, std::string* out);

struct Utf8Sequence {
  enum Kind {
    kValid,
    kInvalid,
    kCut
  } kind;         // kCut: the text ends within a sequence that is valid so far
  size_t length;  // bytes, at least 1
};

// Scans the sequence at bytes[position]. kValid: one character. kInvalid: the bytes to replace by
// one U+FFFD, i.e. a maximal subpart (Unicode 15, section 3.9), as in Rust's lossy conversion.
// kCut: an incomplete sequence at the end.
Utf8Sequence ScanUtf8(std::string_view bytes, size_t position);

bool IsValidUtf8(std::string_view bytes);

// Converts bytes that arrive in pieces to valid text: each invalid sequence becomes U+FFFD.
class Utf8Repair {
 public:
  // Returns the text that later bytes cannot change.
  std::string Push(std::string_view bytes);
  // The replacement of an incomplete sequence at the end: U+FFFD, or empty if there is none.
  std::string Finish();

 private:
  std::string cut_;  // start of a sequence that the next bytes may complete
};

// Unicode's White_Space, General_Category N and P (with ASCII symbols), and the word characters of
// UTS 18.
bool IsWhitespace(char32_t character);
bool IsNumeric(char32_t character);
bool IsPunctuation(char32_t character);
bool IsWordCharacter(char32_t character);
bool IsNonspacingMark(char32_t character);

void AppendLowercase(char32_t character, std::string* out);

}  // namespace switchyard
