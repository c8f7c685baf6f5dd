#include "text/tokenizer/detokenizer.h"

#include <string_view>
#include <utility>

#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

// True if decoding may start at this token, because the decoder's state after the token does not
// depend on earlier tokens. Two conditions ensure this. The token contains a whole character that
// no decoder strips. The decoder does not buffer the token's text together with that of its
// neighbours.
bool StandsByItself(const Tokenizer& tokenizer, int32_t id, bool skip_special_tokens) {
  if (skip_special_tokens && tokenizer.IsSpecial(id)) return false;
  if (IsByteToken(tokenizer.IdToToken(id))) return false;
  const std::string text = tokenizer.TokenText(id);
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t character = NextCharacter(text, &i);
    const bool broken = std::string_view(text).substr(begin, i - begin) == kReplacementCharacter;
    if (!broken && !IsWhitespace(character)) return true;
  }
  return false;
}

// The last tokens of the prompt, which have to be decoded before the generation.
std::span<const int32_t> TailOf(const Tokenizer& tokenizer, bool skip_special_tokens,
                                std::span<const int32_t> prompt) {
  for (size_t i = prompt.size(); i-- > 0;) {
    if (StandsByItself(tokenizer, prompt[i], skip_special_tokens)) return prompt.subspan(i);
  }
  return prompt;
}

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                                               std::span<const int32_t> prompt)
    : parts_(tokenizer.parts_.get()),
      skip_special_tokens_(skip_special_tokens),
      stream_(std::make_unique<DecodeStream>(parts_->decoder, DecodeScope::kWholeText)) {
  if (prompt.empty()) return;
  const std::span<const int32_t> tail = TailOf(tokenizer, skip_special_tokens, prompt);
  parts_->Push(tail, skip_special_tokens_, stream_.get());
  const std::string certain = stream_->Take();
  prompt_text_ = tokenizer.Decode(tail, skip_special_tokens).substr(certain.size());
}

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

std::string IncrementalDetokenizer::Push(std::span<const int32_t> ids, bool show_special) {
  parts_->Push(ids, skip_special_tokens_ && !show_special, stream_.get());
  return DropPromptText(stream_->Take());
}

std::string IncrementalDetokenizer::Finish() {
  stream_->Finish();
  return DropPromptText(stream_->Take());
}

// Removes the common prefix of the text and the prompt's remaining text, in whole characters. The
// texts differ if the generation completes a character that the prompt alone shows as U+FFFD; then
// the generation's text is used.
std::string IncrementalDetokenizer::DropPromptText(std::string text) {
  if (prompt_text_.empty() || text.empty()) return text;
  size_t common = 0;
  while (common < text.size() && common < prompt_text_.size()) {
    size_t end = common;
    NextCharacter(text, &end);
    if (prompt_text_.compare(common, end - common, text, common, end - common) != 0) {
      prompt_text_.clear();
      return text.substr(common);
    }
    common = end;
  }
  prompt_text_.erase(0, common);
  return text.substr(common);
}

}  // namespace switchyard
