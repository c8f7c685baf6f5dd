// Literals in outputs: escapes of strings, and values of Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Decodes the escapes of string literals, one character at a time.

// Receives the bytes between the quotes of a literal. Unknown and unfinished escapes stay as they
// are written. An unpaired surrogate becomes U+FFFD.
class EscapeDecoder {
 public:
  enum class Language { kJson, kPython };  // kPython also: \xHH, \UHHHHHHHH, \' and a newline
  explicit EscapeDecoder(Language language) : language_(language) {}

  void Push(char c, std::string* out);
  void Finish(std::string* out);  // call at the end of the literal or of the text
  // True directly after a backslash: a quote then does not end the literal.
  bool InEscape() const { return escape_.size() == 1; }

 private:
  void Decode(std::string* out);
  void Unit(uint32_t code, std::string* out);
  void DropSurrogate(std::string* out);

  Language language_;
  std::string escape_;      // bytes of the present escape, from its backslash
  uint32_t surrogate_ = 0;  // high surrogate that waits for its low surrogate
};

// Python literals and calls, as models write them, converted to JSON text.

// JSON text of a literal: a string, number, True, False, None, list, tuple or dict. JSON's own
// true, false and null are accepted too. nullopt for other text, and beyond a nesting of 64.
std::optional<std::string> PythonLiteralToJson(std::string_view text);

struct PythonCall {
  std::string name;       // may contain dots
  std::string arguments;  // a JSON object of the keyword arguments
};

// The calls of a list "[f(a=1), g()]". nullopt unless all of `text` is such a list of at least one
// call, with keyword arguments that are literals.
std::optional<std::vector<PythonCall>> ParsePythonCalls(std::string_view text);

}  // namespace switchyard
