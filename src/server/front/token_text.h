// Bytes and labels of single tokens in log-probabilities.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The bytes of the token's text, which clients can concatenate. If a token is only a part of a
// character, its text is U+FFFD, but its bytes are those of the part.
std::string TokenBytes(const Tokenizer& tokenizer, int32_t id);

// The token's text if its bytes are valid UTF-8; otherwise the escaped bytes in OpenAI's form,
// "\xf0\x9f". So different tokens have different labels.
std::string TokenLabel(const Tokenizer& tokenizer, int32_t id);

}  // namespace switchyard
