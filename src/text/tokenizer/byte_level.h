// GPT-2's byte-level alphabet: maps each byte to a printable character, so that any bytes can be
// written as text.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// Appends the characters of the bytes: "é\n" gives "Ã©Ċ".
void AppendByteLevel(std::string_view bytes, std::string* out);

// Converts one token back to bytes. A token with a character outside of the alphabet is returned as
// its own UTF-8 bytes.
std::string BytesOfByteLevel(std::string_view token);

}  // namespace switchyard
