#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

bool IsNameChar(char32_t c) {
  return c == '_' || IsInClass(c, CharClass::kLetter) || IsInClass(c, CharClass::kNumeric);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) LexData();
    Push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Fail(std::string message) const {
    throw SyntaxError{line_, std::move(message)};
  }

  std::string_view Rest() const { return std::string_view(source_).substr(at_); }
  bool At(std::string_view text) const { return Rest().substr(0, text.size()) == text; }

  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    at_ = end;
  }

  void Push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  // Reads data up to the next tag, then the tag.
  void LexData() {
    size_t tag = at_;
    while (tag < source_.size()) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) tag = source_.size();
      if (tag + 1 < source_.size() &&
          std::string_view("%{#").find(source_[tag + 1]) != std::string::npos) {
        break;
      }
      if (tag < source_.size()) ++tag;
    }
    if (tag == source_.size()) {
      PushData(source_.size(), source_.size());
      return;
    }
    char kind = source_[tag + 1];
    char sign = SignAt(tag + 2);
    PushData(StrippedEnd(tag, sign, kind != '{'), tag);
    at_ = tag + 2 + (sign ? 1 : 0);
    if (kind == '#') {
      LexComment();
    } else if (kind == '{') {
      Push(TokenKind::kVariableBegin, "{{");
      LexCode("}}", TokenKind::kVariableEnd);
    } else if (size_t body = RawBody()) {
      Advance(body);
      LexRaw();
    } else {
      Push(TokenKind::kBlockBegin, "{%");
      LexCode("%}", TokenKind::kBlockEnd);
    }
    line_starting_ = source_[at_ - 1] == '\n';
  }

  char SignAt(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // Returns the end of the data before a tag at `tag`. `-` strips all white space. lstrip_blocks
  // strips white space between the start of the line and the tag, if there is nothing else.
  size_t StrippedEnd(size_t tag, char sign, bool is_block) const {
    std::string_view data = std::string_view(source_).substr(at_, tag - at_);
    if (sign == '-') return at_ + TrimmedEnd(data);
    if (sign == '+' || !is_block) return tag;
    size_t line_start = data.rfind('\n') + 1;  // 0 on the first line
    bool at_line_start = line_start > 0 || line_starting_;
    bool blank = SkipSpace(data, line_start) == data.size();
    return at_line_start && blank ? at_ + line_start : tag;
  }

  // Emits data [at_, end) and continues at `next`.
  void PushData(size_t end, size_t next) {
    if (end > at_) Push(TokenKind::kData, source_.substr(at_, end - at_));
    Advance(next);
  }

  // Call with at_ after `{%` and its sign. Returns the offset of a raw block's contents; 0 for
  // other tags.
  size_t RawBody() const {
    size_t i = SkipSpace(source_, at_);
    if (source_.compare(i, 3, "raw") != 0) return 0;
    i = SkipSpace(source_, i + 3);
    if (source_.compare(i, 3, "-%}") == 0) return SkipSpace(source_, i + 3);
    return source_.compare(i, 2, "%}") == 0 ? i + 2 : 0;
  }

  // Returns the offset after a tag's end at `i` (for close = "%}": `-%}`, `+%}` or `%}`) and after
  // the white space that it strips. 0 if no tag ends at `i`.
  size_t TagEnd(size_t i, std::string_view close) const {
    bool is_variable = close == "}}";
    char sign = SignAt(i);
    if (sign == '+' && is_variable) return 0;
    size_t end = i + (sign ? 1 : 0);
    if (source_.compare(end, 2, close) != 0) return 0;
    end += 2;
    if (sign == '-') return SkipSpace(source_, end);
    if (!sign && !is_variable && end < source_.size() && source_[end] == '\n') return end + 1;
    return end;
  }

  void LexComment() {
    for (size_t i = at_; i < source_.size(); ++i) {
      if (size_t end = TagEnd(i, "#}")) {
        Advance(end);
        return;
      }
    }
    Fail("Missing end of comment tag");
  }

  void LexRaw() {
    line_starting_ = source_[at_ - 1] == '\n';
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      char sign = SignAt(tag + 2);
      size_t i = SkipSpace(source_, tag + 2 + (sign ? 1 : 0));
      if (source_.compare(i, 6, "endraw") != 0) continue;
      size_t end = TagEnd(SkipSpace(source_, i + 6), "%}");
      if (!end) continue;
      PushData(StrippedEnd(tag, sign, true), tag);
      Advance(end);
      return;
    }
    Fail("Missing end of raw directive");
  }

  // Reads tokens up to and including the end of the tag.
  void LexCode(std::string_view close, TokenKind end_kind) {
    std::string open_brackets;
    while (true) {
      Advance(SkipSpace(source_, at_));
      if (at_ >= source_.size()) return;  // the parser reports the missing end
      if (open_brackets.empty()) {
        if (size_t end = TagEnd(at_, close)) {
          Push(end_kind, std::string(close));
          Advance(end);
          return;
        }
      }
      char c = source_[at_];
      if (IsDigit(c)) {
        LexNumber();
      } else if (c == '\'' || c == '"') {
        LexString(c);
      } else if (!LexName()) {
        LexOperator(open_brackets);
      }
    }
  }

  bool LexName() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t next = end;
      if (!IsNameChar(NextCharacter(source_, &next))) break;
      end = next;
    }
    if (end == at_) return false;
    Push(TokenKind::kName, source_.substr(at_, end - at_));
    at_ = end;
    return true;
  }

  void LexOperator(std::string& open_brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* found = std::find_if(kOperators.begin(), kOperators.end(),
                                     [&](std::string_view op) { return At(op); });
    if (found == kOperators.end()) {
      size_t next = at_;
      NextCharacter(source_, &next);
      Fail(fmt::format("unexpected char '{}' at {}", source_.substr(at_, next - at_),
                       CountCodePoints(std::string_view(source_).substr(0, at_))));
    }
    char c = found->front();
    if (c == '(' || c == '[' || c == '{') {
      open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_brackets.empty()) Fail(fmt::format("unexpected '{}'", c));
      if (open_brackets.back() != c) {
        Fail(fmt::format("unexpected '{}', expected '{}'", c, open_brackets.back()));
      }
      open_brackets.pop_back();
    }
    Push(TokenKind::kOperator, std::string(*found));
    at_ += found->size();
  }

  // Returns the end of the digits that begin at `i`, which may have single underscores between
  // them, or `i` if there are none.
  size_t DigitsEnd(size_t i, int base) const {
    size_t end = i;
    while (i < source_.size()) {
      if (HexValue(source_[i]) < base) {
        end = ++i;
      } else if (source_[i] == '_' && end == i && i + 1 < source_.size() && end != at_ &&
                 HexValue(source_[i + 1]) < base) {
        ++i;
      } else {
        break;
      }
    }
    return end;
  }

  void LexNumber() {
    bool after_dot =
        !tokens_.empty() && tokens_.back().text == "." && at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && LexFloat()) return;
    int base = 10;
    size_t begin = at_;
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      char prefix = static_cast<char>(source_[at_ + 1] | 0x20);
      int wanted = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
      if (wanted != 10 && HexValue(source_[at_ + 2]) < wanted) {
        base = wanted;
        begin += 2;
      }
    }
    size_t end = DigitsEnd(begin, base);
    bool leading_zero = base == 10 && source_[at_] == '0';
    if (leading_zero) end = DigitsEnd(begin, 1);  // further digits are a separate token
    Int value = 0;
    for (size_t i = begin; i < end; ++i) {
      if (source_[i] == '_') continue;
      if (value > (Int{1} << 120)) Fail("integer literal too large");
      value = value * base + HexValue(source_[i]);
    }
    Push(TokenKind::kInteger, source_.substr(at_, end - at_));
    tokens_.back().integer = value;
    at_ = end;
  }

  // A float has a fraction, an exponent or both; otherwise the number is an integer.
  bool LexFloat() {
    size_t end = DigitsEnd(at_, 10);
    size_t whole = end;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      end = DigitsEnd(end + 1, 10);
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      size_t digits = end + 1 + (SignAt(end + 1) ? 1 : 0);
      if (digits < source_.size() && IsDigit(source_[digits])) end = DigitsEnd(digits, 10);
    }
    if (end == whole) return false;
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Push(TokenKind::kFloat, text);
    tokens_.back().floating = std::strtod(text.c_str(), nullptr);
    at_ = end;
    return true;
  }

  void LexString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) {
      Fail(fmt::format("unexpected char '{}' at {}", quote,
                       CountCodePoints(std::string_view(source_).substr(0, at_))));
    }
    Push(TokenKind::kString, Unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    Advance(end + 1);
  }

  // Replaces Python's string escapes. Unknown ones keep their backslash.
  std::string Unescape(std::string_view raw) const {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        out += raw[i];
        continue;
      }
      char c = raw[++i];
      size_t letter = kLetters.find(c);
      if (letter != std::string_view::npos) {
        out += kMeanings[letter];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        AppendEscaped(out, raw.substr(i + 1), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        size_t digits = 1;
        while (digits < 3 && i + digits < raw.size() && raw[i + digits] >= '0' &&
               raw[i + digits] <= '7') {
          ++digits;
        }
        AppendEscaped(out, raw.substr(i), digits, 8);
        i += digits - 1;
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void AppendEscaped(std::string& out, std::string_view raw, size_t digits, int base) const {
    char32_t c = 0;
    if (raw.size() < digits) Fail("truncated escape in a string");
    for (size_t i = 0; i < digits; ++i) {
      int digit = HexValue(raw[i]);
      if (digit >= base || c > 0x10FFFF) Fail("malformed escape in a string");
      c = c * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
      Fail("escape of an invalid code point in a string");
    AppendUtf8(c, &out);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // true at a line start or the template's start
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace switchyard::jinja
