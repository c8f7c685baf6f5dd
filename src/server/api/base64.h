// Base64 encoding of binary fields in JSON responses.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace switchyard {

// Standard alphabet with padding (RFC 4648, section 4).
std::string Base64(std::span<const std::byte> bytes);

}  // namespace switchyard
