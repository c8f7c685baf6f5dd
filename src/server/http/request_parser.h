// The head of an HTTP/1.1 request (RFC 9112) out of bytes, and how its body is framed. Knows no
// socket. Stricter than the RFC where parsers are known to differ: whatever two of them could read
// in two ways is refused, since a proxy before this server may read it the other way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/chunk_decoder.h"
#include "server/http/http_server.h"

namespace switchyard::http {

struct RequestHead {
  std::string method, target;
  int minor_version = 1;  // of HTTP/1.x, 0 or 1
  Headers fields;         // in the order sent
  std::string host;       // empty where there is none
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  uint64_t length = 0;  // of a body that is not chunked, bytes

  bool has_body() const { return chunked || length > 0; }
};

// Reads one head. Work is linear in the bytes taken. One thread.
class RequestParser {
 public:
  struct Limits {
    size_t head_bytes = 64 << 10;
    size_t fields = 1000;
  };
  explicit RequestParser(Limits limits) : limits_(limits) {}

  // Takes bytes off the front of `input`; how many. All are taken unless the head ends or is
  // refused before.
  size_t Take(std::string_view input);

  bool done() const { return done_; }
  bool started() const { return taken_ > 0; }
  size_t bytes() const { return taken_; }
  // After done(), also of what is refused: then as far as it was read.
  RequestHead& head() { return head_; }
  // Set instead of done() as soon as the bytes cannot become a request, or after it where the head
  // as a whole is refused.
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
