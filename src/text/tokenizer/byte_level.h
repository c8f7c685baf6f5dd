// The byte-level alphabet of GPT-2: one printable character for each byte, so that any bytes can be
// written as text.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// "é\n" -> "Ã©Ċ".
void AppendByteLevel(std::string_view bytes, std::string* out);

// The inverse, for one token. A token with any character outside of the alphabet stands for its own
// bytes.
std::string BytesOfByteLevel(std::string_view token);

}  // namespace switchyard
