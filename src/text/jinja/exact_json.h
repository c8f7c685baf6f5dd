// JSON for templates: what Json::parse loses or cannot hold is kept.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::jinja {

// Two kinds of values that JSON text cannot give. They are binary values with a subtype of their
// own, which FromJson (json.h) understands. A parsed text never holds binary values, so that a
// request cannot make them.

// A string that is trusted although it stands in an untrusted document.
nlohmann::ordered_json TrustedString(std::string_view text);
// An integer beyond 64 bits: an optional minus sign and digits.
nlohmann::ordered_json BigInteger(std::string_view digits);

// What the two functions above made; nullopt for any other value.
std::optional<std::string> TrustedStringOf(const nlohmann::ordered_json& json);
std::optional<std::string> BigIntegerOf(const nlohmann::ordered_json& json);

struct JsonLimits {
  int depth;  // objects and arrays inside each other
  int keys;   // of one object
};

// As Json::parse, but integers beyond 64 bits become BigInteger values. With `keeps`, this holds
// below the top-level keys for which it returns true; elsewhere such integers become numbers of
// type double. Throws Json::exception for text that is no JSON, and Error kInvalid, which begins
// with "the " + `what`, beyond `limits`.
nlohmann::ordered_json ParseExactJson(
    std::string_view text, std::string_view what, JsonLimits limits,
    const std::function<bool(std::string_view top_level_key)>& keeps = nullptr);

}  // namespace switchyard::jinja
