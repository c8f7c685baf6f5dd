// Parses the head of a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_server.h"
#include "server/http/request_body.h"

namespace switchyard::http {

// Parser of a request target.

struct RequestTarget {
  std::string path;                          // decoded; "*" for OPTIONS *
  std::map<std::string, std::string> query;  // decoded; the last value of a repeated name
};

// Accepts origin form ("/a?b=c"), absolute form ("http://host/a?b=c") and "*". Returns no value for
// another form, or if a percent sign is not followed by two hexadecimal digits.
std::optional<RequestTarget> ParseTarget(std::string_view target);

// Incremental parser of an HTTP/1.1 request head (RFC 9112), including the framing of the body.
// Independent of sockets. Stricter than the RFC: rejects input that different parsers are known to
// interpret differently. A proxy in front of this server could otherwise see other requests than
// the server (request smuggling).

struct RequestHead {
  std::string method, target;
  int minor_version = 1;  // the x in HTTP/1.x: 0 or 1
  Headers fields;         // in the order in which the client sent them
  std::string host;       // empty if absent
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  uint64_t length = 0;  // body bytes if the body is not chunked

  bool has_body() const { return chunked || length > 0; }
};

// Parses one head. Work is linear in the consumed bytes. Not thread-safe.
class RequestParser {
 public:
  struct Limits {
    size_t head_bytes = 64 << 10;
    size_t fields = 1000;
  };
  explicit RequestParser(Limits limits) : limits_(limits) {}

  // Consumes bytes from the front of `input` and returns their number. Stops early if the head ends
  // or is refused; otherwise consumes all bytes.
  size_t Take(std::string_view input);

  bool done() const { return done_; }
  bool started() const { return taken_ > 0; }
  size_t bytes() const { return taken_; }
  // Valid after done(); after a refusal, contains the part that was parsed.
  RequestHead& head() { return head_; }
  // Set as soon as the input is malformed, or together with done() if the complete head is
  // invalid.
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  void TakeLine(std::string_view line);
  void TakeRequestLine(std::string_view line);
  void TakeField(std::string_view line);
  void Finish();
  void CheckHost();
  void ReadFraming();
  void ReadTransferCoding(const std::string& coding);
  void ReadConnection();
  void CheckExpectAndCoding();
  void Refuse(int status, std::string what, std::string code = "malformed_request");

  const Limits limits_;
  std::string line_;
  size_t taken_ = 0;
  bool has_request_line_ = false, done_ = false;
  RequestHead head_;
  std::optional<Refusal> refusal_;
};

}  // namespace switchyard::http
