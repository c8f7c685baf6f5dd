#include "text/tokenizer/detokenizer.h"

#include <utility>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
                                               std::span<const int32_t> prompt_tail)
    : parts_(tokenizer.parts_.get()),
      skip_special_tokens_(skip_special_tokens),
      stream_(std::make_unique<DecodeStream>(parts_->decoder, DecodeScope::kWholeText)) {
  if (prompt_tail.empty()) return;
  parts_->Push(prompt_tail, skip_special_tokens_, stream_.get());
  const std::string certain = stream_->Take();
  prompt_text_ = tokenizer.Decode(prompt_tail, skip_special_tokens).substr(certain.size());
}

IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept =
    default;

std::string IncrementalDetokenizer::Push(std::span<const int32_t> ids) {
  parts_->Push(ids, skip_special_tokens_, stream_.get());
  return DropPromptText(stream_->Take());
}

std::string IncrementalDetokenizer::Finish() {
  stream_->Finish();
  return DropPromptText(stream_->Take());
}

// Drops what the text and the prompt's rest have in common, in whole characters. Where the two
// part, as where the generation completes a character that the prompt alone showed as U+FFFD, the
// generation's text counts.
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
