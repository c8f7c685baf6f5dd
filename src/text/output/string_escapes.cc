#include "text/output/string_escapes.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool IsFirstSurrogate(uint32_t code) { return code >= 0xD800 && code < 0xDC00; }
bool IsSecondSurrogate(uint32_t code) { return code >= 0xDC00 && code < 0xE000; }

// Length of a complete escape that begins with a backslash and `kind`.
size_t LengthOf(char kind, EscapeDecoder::Language language) {
  if (kind == 'u') return 6;
  if (language == EscapeDecoder::Language::kPython && kind == 'x') return 4;
  if (language == EscapeDecoder::Language::kPython && kind == 'U') return 10;
  return 2;
}

}  // namespace

void EscapeDecoder::Push(char c, std::string* out) {
  if (escape_.empty()) {
    if (c == '\\') {
      escape_ = c;
      return;
    }
    DropSurrogate(out);
    *out += c;
    return;
  }
  if (escape_.size() >= 2 && !IsHex(c)) {  // an unfinished hexadecimal escape
    DropSurrogate(out);
    *out += escape_;
    escape_.clear();
    Push(c, out);
    return;
  }
  escape_ += c;
  if (escape_.size() == LengthOf(escape_[1], language_)) Decode(out);
}

void EscapeDecoder::Finish(std::string* out) {
  DropSurrogate(out);
  *out += escape_;
  escape_.clear();
}

void EscapeDecoder::Decode(std::string* out) {
  static constexpr std::string_view kLetters = "nrtbf\"\\/", kBytes = "\n\r\t\b\f\"\\/";
  const std::string escape = std::exchange(escape_, {});
  if (escape.size() > 2)
    return Unit(static_cast<uint32_t>(std::strtoul(escape.c_str() + 2, nullptr, 16)), out);
  DropSurrogate(out);
  const char kind = escape[1];
  const size_t letter = kLetters.find(kind);
  const bool python = language_ == Language::kPython;
  if (letter != std::string_view::npos && !(python && kind == '/')) {
    *out += kBytes[letter];
  } else if (python && kind == '\'') {
    *out += kind;
  } else if (!python || kind != '\n') {  // Python drops a backslash followed by a newline
    *out += escape;
  }
}

void EscapeDecoder::Unit(uint32_t code, std::string* out) {
  if (surrogate_ != 0 && IsSecondSurrogate(code)) {
    AppendUtf8(0x10000 + ((surrogate_ - 0xD800) << 10) + (code - 0xDC00), out);
    surrogate_ = 0;
    return;
  }
  DropSurrogate(out);
  if (IsFirstSurrogate(code)) {
    surrogate_ = code;
  } else if (IsSecondSurrogate(code) || code > 0x10FFFF) {
    *out += kReplacementCharacter;
  } else {
    AppendUtf8(code, out);
  }
}

void EscapeDecoder::DropSurrogate(std::string* out) {
  if (surrogate_ != 0) *out += kReplacementCharacter;
  surrogate_ = 0;
}

}  // namespace switchyard
