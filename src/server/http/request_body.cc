#include "server/http/request_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace switchyard::http {
namespace {

constexpr int kMaxSizeDigits = 15;  // hexadecimal; 2^60 exceeds any body and fits 64 bits

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsSpace(char c) { return c == ' ' || c == '\t'; }

}  // namespace

bool IsToken(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

bool HasControls(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  });
}

std::optional<FieldLine> ParseFieldLine(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon)) || HasControls(line)) {
    return std::nullopt;
  }
  FieldLine field{.name = line.substr(0, colon), .value = line.substr(colon + 1)};
  while (!field.value.empty() && IsSpace(field.value.front())) field.value.remove_prefix(1);
  while (!field.value.empty() && IsSpace(field.value.back())) field.value.remove_suffix(1);
  return field;
}

ChunkDecoder::Step ChunkDecoder::Next(std::string_view input) {
  size_t at = 0;
  while (at < input.size() && !done() && !refusal_) {
    if (state_ == State::kData) {
      const size_t count = std::min<uint64_t>(left_, input.size() - at);
      left_ -= count;
      if (left_ == 0) state_ = State::kDataCr;
      return {.consumed = at + count, .data = input.substr(at, count)};
    }
    TakeFraming(input[at++]);
  }
  return {.consumed = at, .data = {}};
}

void ChunkDecoder::TakeFraming(char c) {
  switch (state_) {
    case State::kSize:
      return TakeSizeDigit(c);
    case State::kExtension:
      if (++extension_bytes_ > kMaxExtensionBytes) {
        return Refuse(413, "The chunk extensions are too long");
      }
      if (c == '\r') {
        state_ = State::kSizeEnd;
      } else if (HasControls({&c, 1})) {
        Refuse(400, "A chunk's extension has a control character");
      }
      return;
    case State::kSizeEnd:
      if (c != '\n') return Refuse(400, "The size line of a chunk does not end in CR LF");
      state_ = left_ > 0 ? State::kData : State::kTrailer;
      digits_ = 0;
      return;
    case State::kDataCr:
      if (c != '\r') return Refuse(400, "A chunk is longer than its size");
      state_ = State::kDataLf;
      return;
    case State::kDataLf:
      if (c != '\n') return Refuse(400, "A chunk does not end in CR LF");
      state_ = State::kSize;
      return;
    case State::kTrailer:
      return TakeTrailer(c);
    case State::kData:
    case State::kDone:
      return;
  }
}

void ChunkDecoder::TakeSizeDigit(char c) {
  if (const int digit = HexDigit(c); digit >= 0) {
    if (digits_ == 0) left_ = 0;
    if (++digits_ > kMaxSizeDigits) return Refuse(400, "A chunk's size has too many digits");
    left_ = left_ * 16 + static_cast<uint64_t>(digit);
  } else if (digits_ > 0 && c == ';') {
    state_ = State::kExtension;
  } else if (digits_ > 0 && c == '\r') {
    state_ = State::kSizeEnd;
  } else {
    Refuse(400, "A chunk's size is not a hexadecimal number");
  }
}

void ChunkDecoder::TakeTrailer(char c) {
  if (++trailer_bytes_ > kMaxTrailerBytes) {
    return Refuse(431, "The trailer is too long");
  }
  if (c != '\n') {
    line_ += c;
    return;
  }
  if (line_.empty() || line_.back() != '\r') {
    return Refuse(400, "A line of the trailer does not end in CR LF");
  }
  line_.pop_back();
  if (line_.empty()) {
    state_ = State::kDone;
  } else if (!ParseFieldLine(line_)) {
    Refuse(400, "A line of the trailer is malformed");
  }
  line_.clear();
}

void ChunkDecoder::Refuse(int status, const char* what) {
  refusal_ = {.status = status, .message = what};
}

namespace {

Refusal TooLargeBody(size_t limit) {
  return {413, fmt::format("The request body is larger than {} bytes", limit), "body_too_large"};
}

}  // namespace

Refusal OutOfMemory(const MemoryCharge& charge, size_t bytes) {
  if (charge.budget() && bytes > charge.budget()->limit()) {
    return {413,
            fmt::format("The request needs more than the {} bytes of --http-memory-limit",
                        charge.budget()->limit()),
            "body_too_large"};
  }
  return {503, "The memory for requests is exhausted (--http-memory-limit): try again later",
          "memory_limit"};
}

std::optional<Refusal> BodyBuffer::CheckLength(uint64_t length) const {
  if (length > limit_) return TooLargeBody(limit_);
  if (charge_.budget() && length > charge_.budget()->limit()) return OutOfMemory(charge_, length);
  return std::nullopt;
}

std::optional<Refusal> BodyBuffer::Append(std::string_view bytes) {
  const size_t size = bytes_.size() + bytes.size();
  if (size > limit_) return TooLargeBody(limit_);
  if (size > bytes_.capacity()) {
    constexpr size_t kMinBytes = 4 << 10;
    const size_t doubled = std::max({size, 2 * bytes_.capacity(), kMinBytes});
    const size_t capacity = std::max(size, std::min<size_t>(doubled, expected_));
    // Both the old and the new buffer exist during the copy.
    const size_t before = charge_.bytes(), old = bytes_.capacity();
    if (!charge_.Add(capacity)) return OutOfMemory(charge_, before + capacity);
    bytes_.reserve(capacity);
    charge_.Resize(before + capacity - std::min(before, old));
  }
  bytes_ += bytes;
  return std::nullopt;
}

}  // namespace switchyard::http
