// {"String": "…"} or {"Regex": "…"} as normalizers, pre-tokenizers and decoders hold them.
#pragma once

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/text_pattern.h"

namespace switchyard {

TextPattern ReadPattern(const JsonNode& node);

}  // namespace switchyard
