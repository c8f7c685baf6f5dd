#include "server/openai/prompt_text.h"

#include <string_view>
#include <utility>

#include "server/front/token_offsets.h"
#include "server/front/token_text.h"
#include "text/jinja/utf8.h"
#include "text/tokenizer/detokenizer.h"

namespace switchyard::openai {
namespace {

// Finds the start of each token in a text, in order.
class Alignment {
 public:
  explicit Alignment(std::string_view text) : text_(text) {}

  // Returns the token's offset in characters, and moves to its end.
  int64_t Next(std::string_view bytes) {
    if (!bytes.empty() && !Here(bytes)) {
      if (bytes[0] == ' ' && Here(bytes.substr(1))) {
        bytes.remove_prefix(1);  // SentencePiece adds a space before the first word
      } else {
        // If the last token was not found, because the normalizer changed its characters, this
        // token may begin further on. Search the next kFar bytes for it.
        constexpr size_t kFar = 64;
        const size_t at = lost_ ? text_.substr(at_, kFar).find(bytes) : std::string_view::npos;
        lost_ = at == std::string_view::npos;
        if (lost_) return Characters();
        Advance(at);
      }
    }
    lost_ = false;
    const int64_t begin = Characters();
    Advance(bytes.size());
    return begin;
  }

 private:
  bool Here(std::string_view bytes) const { return text_.substr(at_).starts_with(bytes); }

  static bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

  // Number of characters before the one that contains byte at_.
  int64_t Characters() const {
    return at_ < text_.size() && IsContinuation(text_[at_]) ? starts_ - 1 : starts_;
  }

  void Advance(size_t bytes) {
    for (; bytes > 0; --bytes) starts_ += IsContinuation(text_[at_++]) ? 0 : 1;
  }

  std::string_view text_;
  size_t at_ = 0;       // position in bytes
  int64_t starts_ = 0;  // number of characters that begin before at_
  bool lost_ = false;   // the last token was not found
};

}  // namespace

PromptText PromptSentAsText(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                            std::string text) {
  PromptText prompt{.text = std::move(text)};
  prompt.length = static_cast<int64_t>(jinja::CountCodePoints(prompt.text));
  Alignment alignment(prompt.text);
  for (const int32_t id : ids) prompt.offsets.push_back(alignment.Next(TokenBytes(tokenizer, id)));
  return prompt;
}

PromptText PromptSentAsIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  PromptText prompt;
  IncrementalDetokenizer detokenizer(tokenizer, /*skip_special_tokens=*/false);
  TokenOffsets offsets;
  for (const int32_t id : ids) {
    const std::string bytes = TokenBytes(tokenizer, id);
    prompt.offsets.push_back(offsets.Begin(bytes));
    const std::string text = detokenizer.Push({&id, 1});
    offsets.Push(bytes, text);
    prompt.text += text;
  }
  prompt.text += detokenizer.Finish();
  prompt.length = static_cast<int64_t>(jinja::CountCodePoints(prompt.text));
  return prompt;
}

}  // namespace switchyard::openai
