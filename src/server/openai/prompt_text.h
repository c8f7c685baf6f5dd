// A prompt as echo shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace switchyard::openai {

struct PromptText {
  std::string text;
  std::vector<int64_t> offsets;  // of each token, in characters
  int64_t length = 0;            // characters of `text`
};

// Of a prompt that was sent as `text`: that text as it is, and where in it its tokens begin. A
// token that the tokenizer added or changed (a begin-of-sequence, a normalized character) begins
// where the one before it ends.
PromptText PromptSentAsText(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                            std::string text);

// Of a prompt that was sent as ids: their text, special tokens included.
PromptText PromptSentAsIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace switchyard::openai
