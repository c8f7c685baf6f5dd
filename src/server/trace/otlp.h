// Exports spans with OTLP over HTTP: the endpoint and the bodies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "comm/net/tcp.h"

namespace switchyard::trace {

// The receiver of traces: a URL and one HTTP request.

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

// Spans in the JSON of OTLP/HTTP (OpenTelemetry's opentelemetry-proto, trace.v1).

using Attribute = std::pair<const char*, std::variant<std::string, int64_t>>;

struct Span {
  std::string trace_id, span_id, parent_id;  // hexadecimal; parent_id may be empty
  std::string name;
  bool server = false;               // kind SERVER; otherwise INTERNAL
  int64_t begin_ns = 0, end_ns = 0;  // since 1970 (UTC)
  bool failed = false;
  std::vector<Attribute> attributes;
};

// Resource attributes of all spans.
struct Resource {
  std::string service;   // service.name
  std::string version;   // service.version
  std::string instance;  // service.instance.id
};

// The body of one export request.
std::string ToOtlpJson(const Resource& resource, const std::vector<Span>& spans);

// A new id of 16 hexadecimal digits, not all zero. Any thread may call it.
std::string NewSpanId();

}  // namespace switchyard::trace
