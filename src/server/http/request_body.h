// Receives the body of a request: chunked transfer coding and the buffer of the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/memory_budget.h"

namespace switchyard::http {

// Incremental decoder of the chunked transfer coding (RFC 9112, section 7.1).

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

// Buffer for the body of a request that is being received.

// A buffer that grows as bytes arrive. It does not allocate the length that the header gives in
// advance. Its memory is counted in `charge`. Not thread-safe.
class BodyBuffer {
 public:
  // `expected`: the body length given in the head, or `limit` if unknown. In bytes.
  BodyBuffer(MemoryCharge charge, uint64_t expected, size_t limit)
      : charge_(std::move(charge)), expected_(expected), limit_(limit) {}

  // Returns a refusal if a body of `length` bytes exceeds its limit or the whole memory budget, no
  // matter how much of the budget is in use.
  std::optional<Refusal> CheckLength(uint64_t length) const;

  // Returns a refusal if the body exceeds its limit or the memory budget is exhausted.
  std::optional<Refusal> Append(std::string_view bytes);

  size_t size() const { return bytes_.size(); }
  std::string& bytes() { return bytes_; }
  MemoryCharge& charge() { return charge_; }

 private:
  MemoryCharge charge_;  // initial charge plus the capacity of bytes_
  const uint64_t expected_;
  const size_t limit_;
  std::string bytes_;
};

// The refusal of a request that needs `bytes` in total.
Refusal OutOfMemory(const MemoryCharge& charge, size_t bytes);

}  // namespace switchyard::http
