// Base64 (RFC 4648), the encoding of token bytes in tokenizer vocabularies.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard {

// Returns nullopt if the text is not base64. Padding is optional.
std::optional<std::string> BytesOfBase64(std::string_view text);
std::string Base64Of(std::string_view bytes);

}  // namespace switchyard
