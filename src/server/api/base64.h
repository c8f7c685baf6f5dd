// Bytes in JSON.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace switchyard {

// RFC 4648's base64, padded.
std::string Base64(std::span<const std::byte> bytes);

}  // namespace switchyard
