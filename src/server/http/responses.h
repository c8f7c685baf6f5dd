// Bytes of responses: the head and server-sent events. Counts of responses.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_server.h"

namespace switchyard::http {

// Status line and headers of a response.

struct ResponseHead {
  int status = 200;
  std::string content_type;  // empty: none is sent
  Headers extra;
  std::optional<size_t> length;  // bytes of the body; absent: see `chunked`
  bool chunked = false;  // if false and `length` is absent, the end of the connection ends the body
  bool keep_alive = true;
};

// Serializes the head, including the empty line. Line breaks inside values become spaces.
std::string Serialize(const ResponseHead& head);

// Server-sent events, the framing of streamed responses (WHATWG HTML, "Server-sent events").

inline constexpr char kEventStream[] = "text/event-stream";

// Last event of a stream in the OpenAI and SGLang APIs.
inline constexpr char kSseDone[] = "data: [DONE]\n\n";

// Returns one event with `data`. Each line of `data` becomes a "data:" line, and the client joins
// the lines. Clients treat a carriage return as a line end, so they receive a '\n' in its place.
inline std::string SseEvent(std::string_view data) {
  std::string event;
  event.reserve(data.size() + 8);
  if (data.find('\n') == data.npos && data.find('\r') == data.npos) {  // JSON has no line ends
    event += "data: ";
    event += data;
    event += "\n\n";
    return event;
  }
  size_t begin = 0;
  while (true) {
    const size_t end = data.find_first_of("\r\n", begin);
    event += "data: ";
    event += data.substr(begin, end - begin);
    event += '\n';
    if (end == std::string_view::npos) break;
    const bool crlf = data[end] == '\r' && end + 1 < data.size() && data[end + 1] == '\n';
    begin = end + (crlf ? 2 : 1);
  }
  event += '\n';
  return event;
}

// A comment line, which clients ignore. Sent periodically, it keeps proxies from closing an idle
// stream.
inline std::string SseComment(std::string_view text) {
  std::string comment = ": ";
  for (char c : text) comment += (c == '\r' || c == '\n') ? ' ' : c;
  return comment + "\n\n";
}

// Numbers of responses by route, method and status.

struct ResponseKind {
  std::string route;  // as registered, such as "/v1/models/{id}"; "unmatched" for other paths
  // "other" for a method that no route uses, so that clients cannot add entries.
  std::string method;
  int status = 0;
  auto operator<=>(const ResponseKind&) const = default;
};

// Counts responses. Thread-safe. Takes its lock once per response, not for each event of a stream.
class ResponseCounts {
 public:
  // `route` may be empty: no route has the path.
  void Add(std::string_view route, std::string_view method, int status);
  // Begins the counts of a route at 0, for the statuses that dashboards and alerts watch. Otherwise
  // a count would begin with its first response, which a rate over time then misses.
  void Begin(std::string_view route, std::string_view method);
  std::map<ResponseKind, uint64_t> Read() const;

 private:
  mutable std::mutex mutex_;
  std::map<ResponseKind, uint64_t> counts_;
};

}  // namespace switchyard::http
