// Conversion between JSON and values.
#pragma once

#include <nlohmann/json.hpp>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

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
