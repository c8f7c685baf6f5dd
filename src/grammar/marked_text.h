// Texts with special tokens, as formats of structural tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"

namespace switchyard {

// Texts that are one special token each. Grammars match special tokens only by their ids.
using SpecialTokens = std::vector<std::pair<std::string, int32_t>>;

// Formats of a sequence that matches `text` exactly. Texts of special tokens within it match the
// tokens.
nlohmann::ordered_json MarkedText(std::string_view text, const SpecialTokens& special);

// Formats of a sequence that matches any text up to the first of `markers`, without it. Either all
// markers are special tokens, or none.
nlohmann::ordered_json TextBefore(const std::vector<std::string>& markers,
                                  const SpecialTokens& special);

// The format of a sequence of formats.
nlohmann::ordered_json SequenceOf(nlohmann::ordered_json elements);

}  // namespace switchyard
