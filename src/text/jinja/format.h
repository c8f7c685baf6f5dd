// Python's string formatting: %, str.format, and HTML escapes.
#pragma once

#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// `format % arguments`; a tuple holds several arguments, a dict named ones.
Text PercentFormat(Context& context, const Text& format, const Value& arguments);

// Python's format.format(*positional, **named).
Text BraceFormat(Context& context, const Text& format, const Arguments& arguments);

// Replaces & < > ' " by entities. Each entity has the trust of the character that it replaces.
Text EscapeHtml(const Text& text);

// Pads `text` to `width` code points. align is one of < > ^, or c for str.center's rounding of odd
// paddings.
Text Pad(Context& context, const Text& text, Int width, std::string_view fill, char align);

}  // namespace switchyard::jinja
