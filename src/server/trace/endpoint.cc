#include "server/trace/endpoint.h"

#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/format.h"

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

}  // namespace switchyard::trace
