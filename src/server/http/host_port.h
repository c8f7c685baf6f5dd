#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace switchyard::http {

// Formats host and port as in a URL: "127.0.0.1:80", "[::1]:80".
inline std::string HostPort(std::string_view host, int port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace switchyard::http
