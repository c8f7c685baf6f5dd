// The receiver of traces: a URL and one HTTP request.
#pragma once

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

// Sends `body` as JSON and returns the status of the response; 0 if there is none within `limit`.
// Blocks. `limit` does not apply to the resolution of a host name. Throws Error kInvalid if the
// host does not exist.
int PostJson(const Endpoint& endpoint, std::string_view body, const IoLimit& limit);

}  // namespace switchyard::trace
