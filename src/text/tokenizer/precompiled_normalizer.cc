#include <utf8proc.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

// Maximum length of a grapheme cluster that is looked up as a whole. The characters of longer
// clusters are looked up one by one.
constexpr size_t kMaxCluster = 5;  // bytes

uint32_t LittleEndian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

bool IsContinuation(char byte) { return (byte & 0xC0) == 0x80; }

// The trie of Darts-clone (Yata, github.com/s-yata/darts-clone): units of 32 bits.
class DoubleArray {
 public:
  explicit DoubleArray(std::vector<uint32_t> units) : units_(std::move(units)) {}

  // Returns the value of the shortest prefix of `key` that is in the trie.
  std::optional<uint32_t> ShortestPrefix(std::string_view key) const {
    size_t at = 0;
    if (!Descend(&at)) return std::nullopt;
    for (const char c : key) {
      const auto byte = static_cast<uint8_t>(c);
      at ^= byte;
      if (byte == 0 || at >= units_.size()) return std::nullopt;
      const uint32_t unit = units_[at];
      constexpr uint32_t kLabel = 1U << 31 | 0xFF;
      if ((unit & kLabel) != byte) return std::nullopt;
      if (!Descend(&at)) return std::nullopt;
      if (unit >> 8 & 1) return units_[at] & ~(1U << 31);
    }
    return std::nullopt;
  }

 private:
  // Moves from a node to the offset of its children.
  bool Descend(size_t* at) const {
    if (*at >= units_.size()) return false;
    const uint32_t unit = units_[*at];
    *at ^= static_cast<size_t>(unit >> 10) << ((unit & 1U << 9) >> 6);
    return *at < units_.size();
  }

  std::vector<uint32_t> units_;
};

class PrecompiledNormalizer final : public TextNormalizer {
 public:
  PrecompiledNormalizer(std::vector<uint32_t> units, std::string texts)
      : trie_(std::move(units)), texts_(std::move(texts)) {}

  MarkedText Apply(MarkedText text) const override {
    const std::string& bytes = text.text();
    MarkedText out(text.marked());
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t end = EndOfCluster(bytes, begin);
      if (end - begin > kMaxCluster || !Rewrite(text, {begin, end}, &out)) {
        for (size_t at = begin; at < end;) {
          const size_t from = at;
          NextCharacter(bytes, &at);
          if (!Rewrite(text, {from, at}, &out)) out.Append(text, {from, at});
        }
      }
      CheckRewrittenSize(bytes.size(), out.text().size());
      begin = end;
    }
    return out;
  }

 private:
  static size_t EndOfCluster(std::string_view text, size_t begin) {
    size_t end = begin;
    char32_t before = NextCharacter(text, &end);
    utf8proc_int32_t state = 0;
    for (size_t next = end; next < text.size(); end = next) {
      const char32_t after = NextCharacter(text, &next);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                           static_cast<utf8proc_int32_t>(after), &state))
        break;
      before = after;
    }
    return end;
  }

  // Replaces the whole range if the table has an entry for a prefix of the range, as in
  // spm_precompiled.
  bool Rewrite(const MarkedText& text, TextRange range, MarkedText* out) const {
    const std::string_view part = std::string_view(text.text()).substr(range.begin, range.size());
    const std::optional<uint32_t> at = trie_.ShortestPrefix(part);
    if (!at || *at >= texts_.size() || IsContinuation(texts_[*at])) return false;
    out->Append(texts_.c_str() + *at, text.Untrusted(range));
    return true;
  }

  DoubleArray trie_;
  std::string texts_;
};

}  // namespace

std::unique_ptr<TextNormalizer> MakePrecompiledNormalizer(std::string charsmap,
                                                          const std::string& where) {
  const size_t size = charsmap.size() < 4 ? 0 : LittleEndian(charsmap, 0);
  const bool fits = size > 0 && size % 4 == 0 && size <= charsmap.size() - 4;
  if (!fits || !IsValidUtf8(std::string_view(charsmap).substr(4 + size)))
    throw Invalid("{} is not a valid SentencePiece charsmap", where);
  std::vector<uint32_t> units(size / 4);
  for (size_t i = 0; i < units.size(); ++i) units[i] = LittleEndian(charsmap, 4 + 4 * i);
  return std::make_unique<PrecompiledNormalizer>(std::move(units), charsmap.substr(4 + size));
}

}  // namespace switchyard
