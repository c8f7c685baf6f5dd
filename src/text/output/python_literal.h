// Python literals and calls, as models write them, converted to JSON text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// JSON text of a literal: a string, number, True, False, None, list, tuple or dict. JSON's own
// true, false and null are accepted too. nullopt for other text, and beyond a nesting of 64.
std::optional<std::string> PythonLiteralToJson(std::string_view text);

struct PythonCall {
  std::string name;       // may contain dots
  std::string arguments;  // a JSON object of the keyword arguments
};

// The calls of a list "[f(a=1), g()]". nullopt unless all of `text` is such a list of at least one
// call, with keyword arguments that are literals.
std::optional<std::vector<PythonCall>> ParsePythonCalls(std::string_view text);

}  // namespace switchyard
