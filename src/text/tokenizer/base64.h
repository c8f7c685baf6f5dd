// Base64 (RFC 4648), as vocabularies of tokenizers hold bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard {

// nullopt for text that is no base64. Padding may lack.
std::optional<std::string> BytesOfBase64(std::string_view text);
std::string Base64Of(std::string_view bytes);

}  // namespace switchyard
