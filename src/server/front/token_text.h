// Single tokens as log-probabilities show them.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The bytes that the token stands for: those of its text, and of a token that is a part of a
// character its own, where its text is U+FFFD. Clients join them.
std::string TokenBytes(const Tokenizer& tokenizer, int32_t id);

// The token's text where its bytes are whole characters; else the bytes spelled as OpenAI spells
// them, "\xf0\x9f", so that different tokens are shown differently.
std::string TokenLabel(const Tokenizer& tokenizer, int32_t id);

}  // namespace switchyard
