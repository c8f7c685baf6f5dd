#include "text/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // the last character in use is U+0143

constexpr bool IsOwnCharacter(int byte) {
  return ('!' <= byte && byte <= '~') || (0xA1 <= byte && byte <= 0xAC) ||
         (0xAE <= byte && byte <= 0xFF);
}

struct Alphabet {
  std::array<char16_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte) byte = -1;
  char16_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const char16_t c = IsOwnCharacter(b) ? static_cast<char16_t>(b) : next++;
    alphabet.character[static_cast<size_t>(b)] = c;
    alphabet.byte[c] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) {
    const char16_t c = kAlphabet.character[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      out->push_back(static_cast<char>(c));
    } else {
      out->push_back(static_cast<char>(0xC0 | c >> 6));
      out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
}

std::string BytesOfByteLevel(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const char32_t c = NextCharacter(token, &i);
    if (c >= kAlphabetEnd || kAlphabet.byte[c] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(kAlphabet.byte[c]));
  }
  return bytes;
}

}  // namespace switchyard
