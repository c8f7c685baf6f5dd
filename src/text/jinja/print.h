// Values as Python prints them.
#pragma once

#include <string>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// str(value). A string keeps its runs; a container is trusted only if all strings in it are.
Text Str(Context& context, const Value& value);

// repr(value).
Text Repr(Context& context, const Value& value);

std::string IntegerString(Int value);
std::string FloatString(double value);  // repr: the shortest digits that read back

// 'text' with Python's choice of quotes and escapes.
std::string QuotedString(std::string_view text);

}  // namespace switchyard::jinja
