// Decides which web pages may call the server (WHATWG Fetch, "CORS protocol").
#pragma once

#include <string_view>

#include "server/http/http_server.h"

namespace switchyard::http {

enum class OriginKind {
  kNone,  // no Origin header: the client is not a browser, or the page has the server's own origin
  kAllowed,  // its pages may read responses
  kForeign,  // its pages may not read responses or send requests that change state
};

// Allowed origins: pages of this machine ("http://localhost:8000"), the server's own origin (equal
// to the Host header), and options.cors_origins. Without an API key, an origin with a dotted name
// is foreign even if it equals the Host header. Otherwise a page could resolve its own name to this
// server (DNS rebinding) and have the same origin.
OriginKind ClassifyOrigin(const ServerOptions& options, std::string_view origin,
                          std::string_view host);

}  // namespace switchyard::http
