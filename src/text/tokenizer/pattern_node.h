// {"String": "…"} or {"Regex": "…"}, the patterns of normalizers, pre-tokenizers and decoders.
#pragma once

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/text_pattern.h"

namespace switchyard {

TextPattern ReadPattern(const JsonNode& node);

}  // namespace switchyard
