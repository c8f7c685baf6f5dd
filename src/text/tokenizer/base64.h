// Base64 (RFC 4648, section 4), the encoding of token bytes in vocabularies and of binary fields in
// JSON responses.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

// Returns nullopt if the text is not base64. Padding is optional.
std::optional<std::string> BytesOfBase64(std::string_view text);
// With padding.
std::string Base64(std::span<const std::byte> bytes);
std::string Base64Of(std::string_view bytes);

}  // namespace switchyard
