// Text and token offsets of a prompt, for `echo`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace switchyard::openai {

struct PromptText {
  std::string text;
  std::vector<int64_t> offsets;  // start of each token, in characters
  int64_t length = 0;            // characters of `text`
};

// For a prompt that the client sent as `text`: the unchanged text, and the offsets of its tokens. A
// token that is not in the text (a begin-of-sequence token, a normalized character) gets the end of
// the previous token as its offset.
PromptText PromptSentAsText(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                            std::string text);

// For a prompt that the client sent as ids: their text, including special tokens.
PromptText PromptSentAsIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

}  // namespace switchyard::openai
