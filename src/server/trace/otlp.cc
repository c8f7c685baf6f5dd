#include "server/trace/otlp.h"

#include <charconv>
#include <optional>
#include <random>

#include "core/error.h"
#include "core/format.h"
#include "server/api/json_body.h"

namespace switchyard::trace {
namespace {

constexpr char kFlag[] = "--otlp-traces-endpoint";

// Reads the head of a response byte by byte, because its length is not known. The body is not
// needed: the connection is closed.
int ReadStatus(TcpStream& stream, const IoLimit& limit) {
  constexpr size_t kMaxHead = 8 << 10;
  std::string head;
  while (!head.ends_with("\r\n") && head.size() < kMaxHead) {
    char byte = 0;
    if (stream.Receive(&byte, 1, limit) != IoResult::kDone) return 0;
    head += byte;
  }
  // "HTTP/1.1 200 OK"
  const size_t space = head.find(' ');
  if (!head.starts_with("HTTP/1.") || space == std::string::npos) return 0;
  int status = 0;
  std::from_chars(head.data() + space + 1, head.data() + head.size(), status);
  return status;
}

}  // namespace

Endpoint Endpoint::Parse(const std::string& url) {
  std::string_view rest = url;
  if (rest.starts_with("https://"))
    throw Invalid("{} {}: TLS is not supported, want an http URL", kFlag, url);
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.find("://") != std::string_view::npos || rest.empty())
    throw Invalid("{} {}: want http://HOST:PORT or http://HOST:PORT/PATH", kFlag, url);
  Endpoint endpoint;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) endpoint.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  for (const char c : endpoint.path)
    if (c <= ' ' || c >= 0x7f)
      throw Invalid("{} {}: the path has an invalid character", kFlag, url);
  endpoint.address = HostPort::Parse(kFlag, rest);
  if (endpoint.address.port == 0) throw Invalid("{} {}: want a port", kFlag, url);
  return endpoint;
}

int PostJson(const Endpoint& endpoint, std::string_view body, const IoLimit& limit) {
  std::optional<TcpStream> stream = TcpStream::Connect(endpoint.address, limit);
  if (!stream) return 0;
  std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n",
      endpoint.path, endpoint.address.Text(), body.size());
  request += body;
  iovec part{.iov_base = request.data(), .iov_len = request.size()};
  if (stream->Send({&part, 1}, limit) != IoResult::kDone) return 0;
  return ReadStatus(*stream, limit);
}

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
