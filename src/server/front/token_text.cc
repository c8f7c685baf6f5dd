#include "server/front/token_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "text/jinja/utf8.h"
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

int64_t TokenOffsets::Begin(std::string_view bytes) const {
  const int64_t before = certain_ + ahead_;
  if (cut_.empty() || bytes.empty()) return before;
  // If the first byte does not continue the incomplete character, the incomplete character becomes
  // one U+FFFD.
  const bool continues = ScanUtf8(cut_ + bytes[0], 0).length > cut_.size();
  return continues ? before : before + 1;
}

void TokenOffsets::Push(std::string_view bytes, std::string_view text) {
  const std::string all = std::exchange(cut_, {}) + std::string(bytes);
  for (size_t at = 0; at < all.size();) {
    const Utf8Sequence sequence = ScanUtf8(all, at);
    if (sequence.kind == Utf8Sequence::kCut) {
      cut_ = all.substr(at);
      break;
    }
    ++ahead_;
    at += sequence.length;
  }
  if (text.empty()) return;
  certain_ += static_cast<int64_t>(jinja::CountCodePoints(text));
  ahead_ = 0;
}

std::string StopStrings::Push(const Piece& piece) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(piece.hidden ? std::string_view() : piece.text);
  held_ += piece.text;
  hidden_.resize(held_.size(), piece.hidden);
  if (!piece.may_stop) unchecked_ = held_.size();
  size_t begin = 0;
  const std::string* found = nullptr;
  if (FindMatch(&begin, &found)) {
    matched_ = *found;
    std::string out = Release(begin);
    if (keep_match_) out += *matched_;
    held_.clear();
    hidden_.clear();
    return out;
  }
  return Release(held_.size() - HoldBack());
}

// Finds the earliest match, and the longest of several matches at the same position. So the order
// of the stop strings has no effect.
bool StopStrings::FindMatch(size_t* begin, const std::string** found) const {
  *found = nullptr;
  *begin = std::string::npos;
  for (const std::string& stop : stops_) {
    // First position at which a match ends after the unchecked bytes.
    const size_t from = unchecked_ >= stop.size() ? unchecked_ - stop.size() + 1 : 0;
    const size_t at = held_.find(stop, from);
    if (at < *begin || (at == *begin && *found && stop.size() > (*found)->size())) {
      *begin = at;
      *found = &stop;
    }
  }
  return *found != nullptr;
}

std::string StopStrings::Release(size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i)
    if (!hidden_[i]) out += held_[i];
  held_.erase(0, bytes);
  hidden_.erase(hidden_.begin(), hidden_.begin() + static_cast<std::ptrdiff_t>(bytes));
  unchecked_ -= std::min(unchecked_, bytes);
  return out;
}

std::string StopStrings::Finish() { return matched_ ? std::string() : Release(held_.size()); }

size_t StopStrings::HoldBack() const {
  size_t most = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(held_.size(), stop.size() - 1); n > most; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n))
        most = n;
    }
  }
  return most;
}

}  // namespace switchyard
