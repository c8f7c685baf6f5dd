// The chunked transfer coding (RFC 9112, section 7.1), read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::http {

// Why bytes are no request that is served here, as an answer. The connection ends with it.
struct Refusal {
  int status = 400;
  std::string message;
  std::string code = "malformed_request";
};

// One field line of a header or trailer without its line end: name, colon, value. The value comes
// without the spaces around it. None where RFC 9112, section 5, has no such line.
struct FieldLine {
  std::string_view name, value;
};
std::optional<FieldLine> ParseFieldLine(std::string_view line);

bool IsToken(std::string_view text);      // RFC 9110, section 5.6.2
bool HasControls(std::string_view text);  // any control character but the tab

// Work and memory are linear in the bytes taken. Extensions and trailers are checked, bounded and
// dropped. One thread.
class ChunkDecoder {
 public:
  static constexpr size_t kMostExtensionBytes = 16 << 10;  // of a whole body
  static constexpr size_t kMostTrailerBytes = 16 << 10;

  struct Step {
    size_t consumed = 0;
    std::string_view data;  // of the body; within the input
  };

  // Takes framing and at most one run of data off the front of `input`. Everything is taken unless
  // the body ends or is refused before.
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
  uint64_t left_ = 0;  // of the chunk
  size_t extension_bytes_ = 0, trailer_bytes_ = 0;
  std::string line_;  // of the trailer
  std::optional<Refusal> refusal_;
};

}  // namespace switchyard::http
