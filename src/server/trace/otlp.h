// Spans in the JSON of OTLP/HTTP (OpenTelemetry's opentelemetry-proto, trace.v1).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace switchyard::trace {

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
