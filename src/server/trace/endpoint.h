// The receiver of traces: a URL and one HTTP request.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "comm/net/tcp.h"

namespace switchyard::trace {

struct Endpoint {
  HostPort address;
  std::string path = "/v1/traces";

  // "http://HOST:PORT/PATH". Without a scheme: "HOST:PORT". Without a path: /v1/traces. Throws
  // Error kInvalid that names --otlp-traces-endpoint for other text, and for https.
  static Endpoint Parse(const std::string& url);
};

// Sends `body` as JSON and returns the status of the response. Returns 0 if there is no response
// until `until`. Blocks.
int PostJson(const Endpoint& endpoint, std::string_view body,
             std::chrono::steady_clock::time_point until);

}  // namespace switchyard::trace
