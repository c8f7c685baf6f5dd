#include "text/output/python_literal.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "text/output/offered_tools.h"
#include "text/output/output_events.h"
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

namespace {

constexpr int kMaxDepth = 64;

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A recursive-descent reader. After a failure (false or nullopt) its position is undefined.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool AtEnd() {
    SkipSpace();
    return at_ == text_.size();
  }

  // Appends the JSON text of the next literal.
  bool Literal(std::string* json, int depth = 0) {
    SkipSpace();
    if (depth > kMaxDepth || at_ == text_.size()) return false;
    const char c = text_[at_];
    if (c == '[') return List(']', json, depth);
    if (c == '(') return List(')', json, depth);
    if (c == '{') return Dict(json, depth);
    if (c == '"' || c == '\'') return Strings(json);
    if (IsNameStart(c)) return Word(json);
    return Number(json);
  }

  std::optional<std::vector<PythonCall>> Calls() {
    std::vector<PythonCall> calls;
    if (!Take('[')) return std::nullopt;
    do {
      if (!calls.empty() && Take(']')) return calls;  // a comma may follow the last call
      PythonCall call;
      if (!Name(/*dots=*/true, &call.name) || !Take('(') || !Keywords(&call.arguments))
        return std::nullopt;
      calls.push_back(std::move(call));
    } while (Take(','));
    if (!Take(']')) return std::nullopt;
    return calls;
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && IsMarkupSpace(text_[at_])) ++at_;
  }

  bool Take(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool Name(bool dots, std::string* name) {
    SkipSpace();
    const size_t begin = at_;
    while (at_ < text_.size() && (IsNameStart(text_[at_]) || (at_ > begin && IsDigit(text_[at_])) ||
                                  (dots && at_ > begin && text_[at_] == '.')))
      ++at_;
    *name = text_.substr(begin, at_ - begin);
    return !name->empty();
  }

  // Reads the keyword arguments up to the closing parenthesis.
  bool Keywords(std::string* json) {
    *json = "{";
    bool first = true;
    while (!Take(')')) {
      if (!first && !Take(',')) return false;
      if (!first && Take(')')) break;
      std::string key;
      if (!Name(/*dots=*/false, &key) || !Take('=')) return false;
      *json += (first ? "\"" : ", \"") + key + "\": ";
      first = false;
      if (!Literal(json, 1)) return false;
    }
    *json += "}";
    return true;
  }

  bool List(char close, std::string* json, int depth) {
    ++at_;
    *json += "[";
    for (bool first = true; !Take(close); first = false) {
      if (!first && !Take(',')) return false;
      if (!first && Take(close)) break;
      if (!first) *json += ", ";
      if (!Literal(json, depth + 1)) return false;
    }
    *json += "]";
    return true;
  }

  bool Dict(std::string* json, int depth) {
    ++at_;
    *json += "{";
    for (bool first = true; !Take('}'); first = false) {
      if (!first && !Take(',')) return false;
      if (!first && Take('}')) break;
      if (!first) *json += ", ";
      std::string key;
      if (!Literal(&key, depth + 1) || !Take(':')) return false;
      const bool scalar = key[0] != '[' && key[0] != '{';
      if (!scalar) return false;
      *json += (key[0] == '"' ? key : '"' + key + '"') + ": ";
      if (!Literal(json, depth + 1)) return false;
    }
    *json += "}";
    return true;
  }

  // Reads one or more adjacent strings, which Python joins.
  bool Strings(std::string* json) {
    std::string value;
    while (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) {
      if (!OneString(&value)) return false;
      SkipSpace();
    }
    *json += '"' + EscapeJson(value) + '"';
    return true;
  }

  bool OneString(std::string* value) {
    const char quote = text_[at_];
    const std::string triple(3, quote);
    const bool is_triple = text_.substr(at_).starts_with(triple);
    const std::string_view end =
        is_triple ? std::string_view(triple) : std::string_view(triple).substr(0, 1);
    at_ += end.size();
    EscapeDecoder decoder(EscapeDecoder::Language::kPython);
    while (at_ < text_.size()) {
      if (!decoder.InEscape() && text_.substr(at_).starts_with(end)) {
        at_ += end.size();
        decoder.Finish(value);
        return true;
      }
      decoder.Push(text_[at_++], value);
    }
    return false;
  }

  bool Word(std::string* json) {
    std::string word;
    Name(/*dots=*/false, &word);
    if (word == "True" || word == "true") {
      *json += "true";
    } else if (word == "False" || word == "false") {
      *json += "false";
    } else if (word == "None" || word == "null") {
      *json += "null";
    } else {
      return false;
    }
    return true;
  }

  // Numbers as in JSON. A leading plus sign, underscores, and forms such as "1." and ".5" are
  // accepted too.
  bool Number(std::string* json) {
    std::string digits;
    if (text_[at_] == '+') ++at_;
    while (at_ < text_.size() && (IsDigit(text_[at_]) || std::string_view("+-.eE_").find(
                                                             text_[at_]) != std::string::npos)) {
      if (text_[at_] != '_') digits += text_[at_];
      ++at_;
    }
    if (digits.ends_with('.')) digits += '0';
    if (digits.starts_with('.')) digits.insert(0, "0");
    if (digits.empty() || !nlohmann::json::accept(digits)) return false;
    *json += digits;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::string> PythonLiteralToJson(std::string_view text) {
  Reader reader(text);
  std::string json;
  if (!reader.Literal(&json) || !reader.AtEnd()) return std::nullopt;
  return json;
}

std::optional<std::vector<PythonCall>> ParsePythonCalls(std::string_view text) {
  Reader reader(text);
  auto calls = reader.Calls();
  if (!calls || !reader.AtEnd()) return std::nullopt;
  return calls;
}

}  // namespace switchyard
