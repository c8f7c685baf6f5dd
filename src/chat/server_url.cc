#include "chat/server_url.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace switchyard::chat {
namespace {

bool RemovePrefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Path without a trailing slash and without a trailing /v1.
std::string PrefixOf(std::string_view path) {
  const auto trim = [&path] {
    while (path.ends_with('/')) path.remove_suffix(1);
  };
  trim();
  if (path.ends_with("/v1")) path.remove_suffix(3);
  trim();
  return std::string(path);
}

int ParsePort(std::string_view digits, std::string_view url) {
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 1 || port > 65535)
    throw Invalid("{}: the port is \"{}\", want 1 to 65535", url, digits);
  return port;
}

}  // namespace

std::string ServerUrl::Host() const {
  if (!unix_socket.empty()) return "localhost";
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return fmt::format("{}:{}", name, port);
}

std::string ServerUrl::Text() const {
  if (!unix_socket.empty()) return "unix:" + unix_socket;
  return fmt::format("{}://{}{}", tls ? "https" : "http", Host(), prefix);
}

ServerUrl ParseServerUrl(std::string_view text) {
  ServerUrl url;
  // Control characters and spaces would break the head of a request.
  if (std::ranges::any_of(text, [](unsigned char c) { return c <= ' ' || c == 0x7f; }))
    throw Invalid("{}: a URL has no spaces and no control characters", text);
  std::string_view rest = text;
  if (RemovePrefix(&rest, "unix:")) {
    if (rest.starts_with("//")) rest.remove_prefix(2);
    url.unix_socket = rest;
    if (rest.empty()) throw Invalid("{}: want unix:PATH of a socket", text);
    return url;
  }
  if (RemovePrefix(&rest, "https://")) {
    url.tls = true;
    url.port = 443;
  } else if (!RemovePrefix(&rest, "http://") && rest.find("://") != std::string_view::npos) {
    throw Invalid("{}: want http://HOST:PORT, https://HOST or unix:PATH", text);
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view path = rest.substr(slash);
  std::string_view where = rest.substr(0, slash);
  if (rest.find_first_of("?#") != std::string_view::npos)
    throw Invalid("{}: want a URL without ? and #", text);
  if (where.find('@') != std::string_view::npos)
    throw Invalid("{}: want a URL without a user; --api-key sets the key", text);
  url.prefix = PrefixOf(path);
  if (where.starts_with('[')) {
    const size_t close = where.find(']');
    if (close == std::string_view::npos) throw Invalid("{}: a bracket is not closed", text);
    url.host = where.substr(1, close - 1);
    where.remove_prefix(close + 1);
    if (!where.empty() && !where.starts_with(':')) throw Invalid("{}: want [HOST]:PORT", text);
  } else {
    const size_t colon = std::min(where.find(':'), where.size());
    url.host = where.substr(0, colon);
    where.remove_prefix(colon);
    if (where.find(':', 1) != std::string_view::npos)
      throw Invalid("{}: write IPv6 addresses in brackets, like http://[::1]:30000", text);
  }
  if (url.host.empty()) throw Invalid("{}: the URL names no host", text);
  if (!where.empty()) url.port = ParsePort(where.substr(1), text);
  return url;
}

}  // namespace switchyard::chat
