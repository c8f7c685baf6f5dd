#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/compiled_grammar.h"
#include "grammar/xgrammar_impl.h"

namespace switchyard {
namespace {

// Tokens with text, in the order of their bytes.
using Tokens = std::span<const std::pair<int32_t, std::string>>;

// Of tokens with a common prefix of `size` bytes, those whose next byte is `byte`.
Tokens WithNext(Tokens tokens, size_t size, char byte) {
  const auto next = [size](const auto& token) {
    return token.second.size() > size ? static_cast<unsigned char>(token.second[size]) : -1;
  };
  const auto range =
      std::ranges::equal_range(tokens, int{static_cast<unsigned char>(byte)}, {}, next);
  return Tokens(range.begin(), range.end());
}

// The longest token at the beginning of `text`. If several tokens have the same bytes, the last
// one: SentencePiece's tokens of single bytes precede its pieces.
std::optional<int32_t> LongestToken(Tokens tokens, std::string_view text) {
  std::optional<int32_t> longest;
  for (size_t size = 0; size < text.size() && !tokens.empty(); ++size) {
    tokens = WithNext(tokens, size, text[size]);
    std::optional<int32_t> same;
    for (size_t i = 0; i < tokens.size() && tokens[i].second.size() == size + 1; ++i)
      same = std::max(same, std::optional(tokens[i].first));
    if (same) longest = same;
  }
  return longest;
}

int64_t Count(std::span<const uint32_t> mask) {
  int64_t count = 0;
  for (const uint32_t word : mask) count += std::popcount(word);
  return count;
}

// Calls visit(id) with each allowed token until it returns true. Returns whether it did.
template <typename Visit>
bool AnyAllowed(std::span<const uint32_t> mask, const Visit& visit) {
  for (size_t i = 0; i < mask.size(); ++i)
    for (uint32_t word = mask[i]; word != 0; word &= word - 1)
      if (visit(static_cast<int32_t>(i * 32 + std::countr_zero(word)))) return true;
  return false;
}

class Walk {
 public:
  Walk(GrammarMatcher& matcher, int64_t most, std::vector<uint32_t>& mask)
      : matcher_(matcher),
        most_(most),
        mask_(mask),
        info_(matcher.grammar().impl().compiled.GetTokenizerInfo()) {}

  std::vector<int32_t> Run() {
    const int64_t length = matcher_.length();
    Extend();
    if (ends_text_ && AllowsLongerToken()) tokens_.pop_back();
    matcher_.Rollback(matcher_.length() - length);
    if (!tokens_.empty()) mask_.clear();
    return std::move(tokens_);
  }

 private:
  bool full() const { return std::ssize(tokens_) == most_; }

  bool Append(int32_t token) {
    if (!matcher_.Accept(token)) return false;
    tokens_.push_back(token);
    return true;
  }

  void Extend() {
    while (!full()) {
      const std::string text = matcher_.ForcedText();
      if (!AppendText(text)) return;
      ends_text_ = !text.empty();
      if (full() || text.size() == GrammarMatcher::kMostForcedText) continue;
      const std::optional<int32_t> only = OnlyToken();
      if (!only || !Append(*only)) return;
      ends_text_ = false;
    }
  }

  // Returns whether the tokens reach the end of `text`.
  bool AppendText(std::string_view text) {
    while (!text.empty()) {
      if (full()) return false;
      const std::optional<int32_t> token = LongestToken(info_.GetSortedDecodedVocab(), text);
      if (!token || !Append(*token)) return false;
      text.remove_prefix(info_.GetDecodedVocab()[*token].size());
    }
    return true;
  }

  bool FillMask() {
    mask_.resize(MaskWords(info_.GetVocabSize()));
    if (matcher_.FillMask(mask_)) return true;
    mask_.clear();
    return false;
  }

  // The only token that the grammar allows, unless it is a stop token.
  std::optional<int32_t> OnlyToken() {
    if (!FillMask() || Count(mask_) != 1) return std::nullopt;
    std::optional<int32_t> only;
    AnyAllowed(mask_, [&](int32_t token) {
      only = token;
      return true;
    });
    const std::vector<int32_t>& stop = info_.GetStopTokenIds();
    return std::ranges::find(stop, *only) == stop.end() ? only : std::nullopt;
  }

  // Whether the grammar also allows a longer token that begins with the last one. Leaves the
  // matcher before the last token, and overwrites the mask.
  bool AllowsLongerToken() {
    matcher_.Rollback(1);
    const std::string& last = info_.GetDecodedVocab()[tokens_.back()];
    Tokens longer = info_.GetSortedDecodedVocab();
    for (size_t size = 0; size < last.size(); ++size) longer = WithNext(longer, size, last[size]);
    if (!FillMask()) return false;
    if (std::ssize(longer) <= Count(mask_))
      return std::ranges::any_of(longer, [&](const auto& token) {
        return token.second.size() > last.size() && MaskAllows(mask_, token.first);
      });
    return AnyAllowed(mask_, [&](int32_t id) {
      const std::string& token = info_.GetDecodedVocab()[id];
      return token.size() > last.size() && token.starts_with(last);
    });
  }

  GrammarMatcher& matcher_;
  const int64_t most_;
  std::vector<uint32_t>& mask_;
  const xgrammar::TokenizerInfo info_;
  std::vector<int32_t> tokens_;
  bool ends_text_ = false;  // whether the last token ends a forced text
};

}  // namespace

std::vector<int32_t> ForcedTokens(GrammarMatcher& matcher, int64_t most,
                                  std::vector<uint32_t>* mask) {
  mask->clear();
  if (matcher.ended() || matcher.grammar().has_budgets()) return {};
  return Walk(matcher, most, *mask).Run();
}

}  // namespace switchyard
