// Encodes a rendered prompt to token ids.
#pragma once

#include <cstdint>
#include <vector>

#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Special tokens are recognised in trusted runs only. No BOS or EOS is added, since templates
// contain their own. `limit`: see Tokenizer::Encode.
std::vector<int32_t> EncodeRendered(const Tokenizer& tokenizer, const jinja::Rendered& rendered,
                                    size_t limit = Tokenizer::kNoLimit);

}  // namespace switchyard
