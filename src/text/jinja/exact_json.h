// JSON for templates: keeps integers beyond 64 bits and the trust of strings, which Json::parse
// cannot represent.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::jinja {

// Two kinds of values that JSON text cannot express. They are binary values with subtypes that
// FromJson (print.h) understands. Parsed text never contains binary values, so a request cannot
// forge them.

// A trusted string within an untrusted document.
nlohmann::ordered_json TrustedString(std::string_view text);
// An integer beyond 64 bits: an optional minus sign and digits.
nlohmann::ordered_json BigIntegerTag(std::string_view digits);

// The text of a TrustedString, and the digits of a BigIntegerTag; nullopt for other values.
std::optional<std::string> TrustedStringOf(const nlohmann::ordered_json& json);
std::optional<std::string> BigIntegerOf(const nlohmann::ordered_json& json);

struct JsonLimits {
  int depth;  // maximum nesting of objects and arrays
  int keys;   // maximum keys per object
};

// As Json::parse, but integers beyond 64 bits become values of BigIntegerTag. If `keeps` is given,
// this applies only below the top-level keys for which it returns true; elsewhere such integers
// become doubles. Throws Json::exception for text that is not JSON. Throws Error kInvalid beyond
// `limits`; its message begins with "the " + `what`.
nlohmann::ordered_json ParseExactJson(
    std::string_view text, std::string_view what, JsonLimits limits,
    const std::function<bool(std::string_view top_level_key)>& keeps = nullptr);

}  // namespace switchyard::jinja
