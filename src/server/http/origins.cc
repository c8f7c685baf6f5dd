#include "server/http/origins.h"

#include <arpa/inet.h>
#include <strings.h>

#include <algorithm>
#include <string>

namespace switchyard::http {
namespace {

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Returns the host name: "http://localhost:8000" -> "localhost", "[::1]:80" -> "[::1]".
std::string_view NameOf(std::string_view host) {
  if (const size_t scheme = host.find("://"); scheme != std::string_view::npos) {
    host.remove_prefix(scheme + 3);
  }
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool IsIpv4(std::string_view name, in_addr* address) {
  return inet_pton(AF_INET, std::string(name).c_str(), address) == 1;
}

bool IsLocal(std::string_view name) {
  in_addr address{};
  if (IsIpv4(name, &address)) return ntohl(address.s_addr) >> 24 == 127;
  constexpr std::string_view kUnder = ".localhost";
  return Same(name, "localhost") || name == "[::1]" ||
         (name.size() > kUnder.size() && Same(name.substr(name.size() - kUnder.size()), kUnder));
}

bool IsOwn(const ServerOptions& options, std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  if (host.empty() || scheme == std::string_view::npos) return false;
  if (!Same(origin.substr(scheme + 3), host)) return false;
  const std::string_view name = NameOf(host);
  in_addr ignored{};
  return !options.api_keys.empty() || name.starts_with('[') || IsIpv4(name, &ignored) ||
         name.find('.') == std::string_view::npos;
}

}  // namespace

OriginKind ClassifyOrigin(const ServerOptions& options, std::string_view origin,
                          std::string_view host) {
  if (origin.empty()) return OriginKind::kNone;
  const auto& listed = options.cors_origins;
  const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](const std::string& each) {
    return each == "*" || Same(each, origin);
  });
  const bool is_web = origin.starts_with("http://") || origin.starts_with("https://");
  if (is_listed || (is_web && (IsLocal(NameOf(origin)) || IsOwn(options, origin, host)))) {
    return OriginKind::kAllowed;
  }
  return OriginKind::kForeign;
}

}  // namespace switchyard::http
