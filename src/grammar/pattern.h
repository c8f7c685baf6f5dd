// Regular expressions of strings in JSON.
#pragma once

#include <string>

namespace switchyard {

// Returns `pattern` in a form that XGrammar compiles for the inside of a JSON string: quotes,
// backslashes and control characters are excluded from every part of it. Throws Error kInvalid if
// the pattern is malformed, has a construct that is not supported, or matches no string without
// these characters.
std::string StringPattern(const std::string& pattern);

}  // namespace switchyard
