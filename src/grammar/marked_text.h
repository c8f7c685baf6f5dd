// Converts texts that contain special tokens to formats of structural tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"

namespace switchyard {

// Special tokens: text and id. Grammars match special tokens only by their ids.
using SpecialTokens = std::vector<std::pair<std::string, int32_t>>;

// The elements of a sequence that matches `text` exactly. Where `text` contains the text of a
// special token, the sequence matches the token.
nlohmann::ordered_json MarkedText(std::string_view text, const SpecialTokens& special);

// The elements of a sequence that matches any text before the first marker. Either all `markers`
// are special tokens, or none is.
nlohmann::ordered_json TextUntil(const std::vector<std::string>& markers,
                                 const SpecialTokens& special);

// The format of a sequence of formats.
nlohmann::ordered_json SequenceOf(nlohmann::ordered_json elements);

}  // namespace switchyard
