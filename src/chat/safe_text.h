// Text of a server, as it may be shown on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace switchyard::chat {

// The text without control characters, except for line ends and tabs. Bytes of UTF-8 are kept.
std::string WithoutControls(std::string_view text);

// For messages: at most 500 bytes of the text without control characters and without white space at
// its end. Whole characters of UTF-8 are cut off.
std::string Shortened(std::string_view text);

}  // namespace switchyard::chat
