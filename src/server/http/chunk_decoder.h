// Incremental decoder of the chunked transfer coding (RFC 9112, section 7.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::http {

// The error response to a malformed or unsupported request. The connection is closed after it.
struct Refusal {
  int status = 400;
  std::string message;
  std::string code = "malformed_request";
};

// Parses one field line of a header or trailer, without its line end: name, colon, value. Strips
// spaces around the value. Returns no value for a line that is invalid by RFC 9112, section 5.
struct FieldLine {
  std::string_view name, value;
};
std::optional<FieldLine> ParseFieldLine(std::string_view line);

bool IsToken(std::string_view text);      // RFC 9110, section 5.6.2
bool HasControls(std::string_view text);  // any control character except tab

// Work and memory are linear in the consumed bytes. Extensions and trailers are checked, limited in
// size, and discarded. Not thread-safe.
class ChunkDecoder {
 public:
  static constexpr size_t kMaxExtensionBytes = 16 << 10;  // of all chunks of a body together
  static constexpr size_t kMaxTrailerBytes = 16 << 10;

  struct Step {
    size_t consumed = 0;
    std::string_view data;  // body bytes; a part of the input
  };

  // Consumes framing and at most one run of data from the front of `input`. Call again until all
  // input is consumed, or until done() or refusal().
  Step Next(std::string_view input);

  bool done() const { return state_ == State::kDone; }
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  enum class State { kSize, kExtension, kSizeEnd, kData, kDataCr, kDataLf, kTrailer, kDone };

  void TakeFraming(char c);
  void TakeSizeDigit(char c);
  void TakeTrailer(char c);
  void Refuse(int status, const char* what);

  State state_ = State::kSize;
  int digits_ = 0;
  uint64_t left_ = 0;  // remaining bytes of the chunk
  size_t extension_bytes_ = 0, trailer_bytes_ = 0;
  std::string line_;  // current line of the trailer
  std::optional<Refusal> refusal_;
};

}  // namespace switchyard::http
