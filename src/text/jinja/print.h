// Prints values as Python does.
#pragma once

#include <string>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// str(value). A string keeps its runs; a container is trusted only if all its strings are.
Text Str(Context& context, const Value& value);

// Returns what Python's repr(value) does.
Text Repr(Context& context, const Value& value);

std::string IntegerString(Int value);
std::string FloatString(double value);  // repr: the shortest digits that parse to the same value

// The text in quotes, escaped by the rules of Python's repr.
std::string QuotedString(std::string_view text);

}  // namespace switchyard::jinja
