// Buffer for the body of a request that is being received.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/chunk_decoder.h"
#include "server/http/memory_budget.h"

namespace switchyard::http {

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
