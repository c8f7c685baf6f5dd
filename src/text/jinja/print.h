// Values as text: printed, formatted and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Prints values as Python does.

// str(value). A string keeps its runs; a container is trusted only if all its strings are.
Text Str(Context& context, const Value& value);

// Returns what Python's repr(value) does.
Text Repr(Context& context, const Value& value);

std::string IntegerString(Int value);
std::string FloatString(double value);  // repr: the shortest digits that parse to the same value

// The text in quotes, escaped by the rules of Python's repr.
std::string QuotedString(std::string_view text);

// Python's string formatting: %, str.format, and HTML escapes.

// `format % arguments`; a tuple holds several arguments, a dict named ones.
Text PercentFormat(Context& context, const Text& format, const Value& arguments);

// Python's format.format(*positional, **named).
Text BraceFormat(Context& context, const Text& format, const Arguments& arguments);

// Replaces & < > ' " by entities. Each entity has the trust of the character that it replaces.
Text EscapeHtml(const Text& text);

// Pads `text` to `width` code points. align is one of < > ^, or c for str.center's rounding of odd
// paddings.
Text Pad(Context& context, const Text& text, Int width, std::string_view fill, char align);

// Conversion between JSON and values.

// Strings and keys get trust `trusted`. Raises for invalid UTF-8 and for nesting beyond
// kMaxNesting.
Value FromJson(Context& context, const nlohmann::ordered_json& json, bool trusted);

// Options of json.dumps. Without indent the separators are ", " and ": ".
struct JsonStyle {
  std::optional<std::string> indent;  // text of one indentation level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};

// json.dumps(value). The text is untrusted if any string in `value` is.
Text ToJson(Context& context, const Value& value, const JsonStyle& style);

}  // namespace switchyard::jinja
