// The body of a request while it arrives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/chunk_decoder.h"
#include "server/http/memory_budget.h"

namespace switchyard::http {

// Grows with what has arrived, not with what was announced, and counts its memory. One thread.
class BodyBuffer {
 public:
  // `expected`: bytes in all, where the head says so, else `limit`.
  BodyBuffer(MemoryCharge charge, uint64_t expected, size_t limit)
      : charge_(std::move(charge)), expected_(expected), limit_(limit) {}

  // The refusal where the body is larger than its limit or memory is used up.
  std::optional<Refusal> Append(std::string_view bytes);

  size_t size() const { return bytes_.size(); }
  std::string& bytes() { return bytes_; }
  MemoryCharge& charge() { return charge_; }

 private:
  MemoryCharge charge_;  // of bytes_'s capacity, and of what the charge held before
  const uint64_t expected_;
  const size_t limit_;
  std::string bytes_;
};

Refusal TooLargeBody(size_t limit);
// Of a request that wants `bytes` in all.
Refusal OutOfMemory(const MemoryCharge& charge, size_t bytes);

}  // namespace switchyard::http
