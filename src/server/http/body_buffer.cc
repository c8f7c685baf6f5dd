#include "server/http/body_buffer.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::http {

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
