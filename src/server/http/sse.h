// Server-sent events, the framing of streamed responses (WHATWG HTML, "Server-sent events").
#pragma once

#include <string>
#include <string_view>

namespace switchyard::http {

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

}  // namespace switchyard::http
