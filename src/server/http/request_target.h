// Parser of a request target.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::http {

struct RequestTarget {
  std::string path;                          // decoded; "*" for OPTIONS *
  std::map<std::string, std::string> query;  // decoded; the last value of a repeated name
};

// Accepts origin form ("/a?b=c"), absolute form ("http://host/a?b=c") and "*". Returns no value for
// another form, or if a percent sign is not followed by two hexadecimal digits.
std::optional<RequestTarget> ParseTarget(std::string_view target);

}  // namespace switchyard::http
