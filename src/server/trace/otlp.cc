#include "server/trace/otlp.h"

#include <random>

#include "core/format.h"
#include "server/api/json_body.h"

namespace switchyard::trace {
namespace {

// Values of the enums SpanKind and StatusCode.
constexpr int kInternal = 1, kServer = 2, kStatusError = 2;

Json AttributeJson(const Attribute& attribute) {
  Json value = Json::object();
  if (const auto* text = std::get_if<std::string>(&attribute.second)) {
    value["stringValue"] = *text;
  } else {
    // 64-bit integers are strings in the JSON of protocol buffers.
    value["intValue"] = std::to_string(std::get<int64_t>(attribute.second));
  }
  return {{"key", attribute.first}, {"value", std::move(value)}};
}

Json SpanJson(const Span& span) {
  Json json = {{"traceId", span.trace_id}, {"spanId", span.span_id}};
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  json["name"] = span.name;
  json["kind"] = span.server ? kServer : kInternal;
  json["startTimeUnixNano"] = std::to_string(span.begin_ns);
  json["endTimeUnixNano"] = std::to_string(span.end_ns);
  Json& attributes = json["attributes"] = Json::array();
  for (const Attribute& attribute : span.attributes) attributes.push_back(AttributeJson(attribute));
  if (span.failed) json["status"] = Json::object({{"code", kStatusError}});
  return json;
}

}  // namespace

std::string ToOtlpJson(const Resource& resource, const std::vector<Span>& spans) {
  Json list = Json::array();
  for (const Span& span : spans) list.push_back(SpanJson(span));
  Json attributes = Json::array();
  for (const Attribute& attribute :
       {Attribute("service.name", resource.service), Attribute("service.version", resource.version),
        Attribute("service.instance.id", resource.instance)})
    attributes.push_back(AttributeJson(attribute));
  Json scope = {{"scope", {{"name", "switchyard"}, {"version", resource.version}}},
                {"spans", std::move(list)}};
  Json group = {{"resource", Json::object({{"attributes", std::move(attributes)}})},
                {"scopeSpans", Json::array({std::move(scope)})}};
  return Dump(Json::object({{"resourceSpans", Json::array({std::move(group)})}}));
}

std::string NewSpanId() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  uint64_t id = 0;
  while (id == 0) id = random();
  return fmt::format("{:016x}", id);
}

}  // namespace switchyard::trace
