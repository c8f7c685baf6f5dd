// The tools that a request offers: names, and types of parameters.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// A set of JSON types. 0: unknown.
using JsonTypes = uint8_t;
inline constexpr JsonTypes kJsonString = 1, kJsonInteger = 2, kJsonNumber = 4, kJsonBoolean = 8,
                           kJsonObject = 16, kJsonArray = 32, kJsonNull = 64;

// Immutable once built; thread-safe. The types are needed for formats that write parameters as
// plain text.
class OfferedTools {
 public:
  OfferedTools() = default;
  // `tools`: a list of {"type": "function", "function": {"name", "parameters"}}. Malformed entries
  // are skipped.
  explicit OfferedTools(const nlohmann::ordered_json& tools);

  bool Has(std::string_view name) const { return types_.contains(name); }
  // The types that the function's schema allows for a parameter: its type, const, enum, anyOf,
  // oneOf, allOf and local references. 0 if the schema does not say.
  JsonTypes TypesOf(std::string_view function, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, JsonTypes, std::less<>>, std::less<>> types_;
};

// Converts a parameter to JSON text. `text` is what the model wrote; `types` are the types that the
// schema allows. JSON of an allowed type, or Python's spelling of it, stays a value. Other text
// becomes a string.
std::string ParameterJson(std::string_view text, JsonTypes types);

// `text` with the escapes of a JSON string, without quotes.
std::string EscapeJson(std::string_view text);

}  // namespace switchyard
