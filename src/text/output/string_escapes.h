// Decodes the escapes of string literals, one character at a time.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

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

}  // namespace switchyard
