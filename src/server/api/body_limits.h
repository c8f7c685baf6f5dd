// Limits of JSON text from clients.
#pragma once

#include "text/jinja/exact_json.h"

namespace switchyard {

// Depth: messages and tool schemas need less. Recursive code that walks an object of this depth
// does not overflow the stack. Keys: ordered_json looks up keys by linear search, so parsing takes
// quadratic time in the number of keys.
inline constexpr jinja::JsonLimits kBodyLimits{.depth = 128, .keys = 4096};

}  // namespace switchyard
