// Which web pages may call the server (WHATWG Fetch, "CORS protocol").
#pragma once

#include <string_view>

#include "server/http/http_server.h"

namespace switchyard::http {

enum class OriginKind {
  kNone,     // no browser, or a page that need not ask
  kAllowed,  // its page may read the answer
  kForeign,  // its page may not: requests that change state are refused
};

// Allowed are: pages of this machine ("http://localhost:8000"); the page's own server, which is
// this one by the Host header; and what options.cors_origins lists. Without a key a Host of a
// dotted name does not count as this server: a page can point its own name at any address (DNS
// rebinding), and would be its own origin here.
OriginKind JudgeOrigin(const ServerOptions& options, std::string_view origin,
                       std::string_view host);

}  // namespace switchyard::http
