// Encodes a rendered prompt to token ids.
#pragma once

#include <cstdint>
#include <vector>

#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Special tokens are recognised in trusted runs only. Templates write BOS and EOS themselves, so
// the post-processor adds no special tokens unless `add_special_tokens` is set. `limit`: see
// Tokenizer::Encode.
std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                    bool add_special_tokens = false,
                                    size_t limit = Tokenizer::kNoLimit);

}  // namespace switchyard
