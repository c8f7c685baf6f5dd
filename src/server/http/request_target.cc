#include "server/http/request_target.h"

#include <algorithm>
#include <utility>

namespace switchyard::http {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-decodes `text`. In a query only, '+' means a space.
std::optional<std::string> Decode(std::string_view text, bool in_query) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (text.size() - i < 3) return std::nullopt;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += in_query && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

}  // namespace

std::optional<RequestTarget> ParseTarget(std::string_view target) {
  if (target == "*") return RequestTarget{.path = "*", .query = {}};
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t path = target.find_first_of("/?", target.find("://") + 3);
    target.remove_prefix(path == std::string_view::npos ? target.size() : path);
  } else if (!target.starts_with('/')) {
    return std::nullopt;
  }
  target = target.substr(0, target.find('#'));

  const size_t question = target.find('?');
  std::optional<std::string> path = Decode(target.substr(0, question), false);
  if (!path) return std::nullopt;
  RequestTarget parsed{.path = path->empty() ? "/" : std::move(*path), .query = {}};

  std::string_view rest = question == std::string_view::npos ? "" : target.substr(question + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    std::optional<std::string> name = Decode(pair.substr(0, equals), true);
    std::optional<std::string> value =
        Decode(equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
    if (!name || !value) return std::nullopt;
    parsed.query[*name] = std::move(*value);
  }
  return parsed;
}

}  // namespace switchyard::http
