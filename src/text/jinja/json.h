// JSON to values and back.
#pragma once

#include <nlohmann/json.hpp>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// Strings and keys get the given trust. Raises for invalid UTF-8 and for nesting beyond
// kMaxNesting.
Value FromJson(Context& context, const nlohmann::ordered_json& json, bool trusted);

// How json.dumps is called; separators without indent are ", " and ": ".
struct JsonStyle {
  std::optional<std::string> indent;  // one level of it
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};

// json.dumps(value). Untrusted if any string in `value` is.
Text ToJson(Context& context, const Value& value, const JsonStyle& style);

}  // namespace switchyard::jinja
