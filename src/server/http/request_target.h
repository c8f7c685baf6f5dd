// The target of a request line, taken apart.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::http {

struct RequestTarget {
  std::string path;                          // decoded; "*" for OPTIONS *
  std::map<std::string, std::string> query;  // decoded; of a repeated name the last value
};

// Takes origin form ("/a?b=c"), absolute form ("http://host/a?b=c") and "*". None if the target has
// another form or a percent sign is not followed by two hexadecimal digits.
std::optional<RequestTarget> ParseTarget(std::string_view target);

}  // namespace switchyard::http
