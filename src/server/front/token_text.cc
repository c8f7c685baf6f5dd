#include "server/front/token_text.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/format.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

// GPT-2's byte alphabet (openai/gpt-2, encoder.py, bytes_to_unicode). Printable Latin-1 bytes map
// to themselves, the other bytes to code points 256, 257, … in order. This table maps code points
// to bytes; −1: no byte.
constexpr std::array<int16_t, 324> kByteOfCharacter = [] {
  std::array<int16_t, 324> table{};
  table.fill(-1);
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    table[own ? b : next++] = static_cast<int16_t>(b);
  }
  return table;
}();

// Parses a SentencePiece byte token, e.g. "<0xE4>".
std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

std::optional<std::string> ByteLevelBytes(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const char32_t character = NextCharacter(token, &at);
    if (character >= kByteOfCharacter.size() || kByteOfCharacter[character] < 0)
      return std::nullopt;
    bytes += static_cast<char>(kByteOfCharacter[character]);
  }
  return bytes;
}

}  // namespace

std::string TokenBytes(const Tokenizer& tokenizer, int32_t id) {
  std::string text = tokenizer.TokenText(id);
  if (text.find(kReplacementCharacter) == std::string::npos) return text;
  const std::string_view token = tokenizer.IdToToken(id);
  if (const std::optional<char> byte = FallbackByte(token)) return {*byte};
  if (std::optional<std::string> bytes = ByteLevelBytes(token)) return *std::move(bytes);
  return text;
}

std::string TokenLabel(const Tokenizer& tokenizer, int32_t id) {
  std::string bytes = TokenBytes(tokenizer, id);
  if (IsValidUtf8(bytes)) return bytes;
  std::string label;
  for (const unsigned char byte : bytes) label += fmt::format("\\x{:02x}", byte);
  return label;
}

}  // namespace switchyard
