// Token rows and routing that a rank publishes in its own arena for others to pull.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/rows.h"

namespace switchyard {

// Part of the payload of an exchange slot in the one-sided exchanges: rows that other ranks pull. A
// rank writes rows to its own arena only. A row is written once, however many ranks read it.
class PublishedRows {
 public:
  // Routing of the tokens that one rank has published. Views of that rank's arena.
  struct Routing {
    int64_t tokens = 0;
    const int32_t* ids = nullptr;  // [tokens, k] physical experts, −1 for none
  };

  // Adds its buffers to `plan`, for at most `capacity` tokens.
  PublishedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan);

  // These functions write the routing, and the rows that experts of other ranks need. After both
  // calls, the caller must raise a flag.
  void PublishRouting(const ExchangeSlots& slots, const SlotUse& use, const TopK& topk) const;
  void PublishRows(const ExchangeSlots& slots, const SlotUse& use, const float* x, const TopK& topk,
                   const ExpertMap& experts, ThreadPool& pool) const;

  // Reads the routing of `source`, on any rank, after the wait for its flag. `what` is for the
  // timeout message.
  Routing ReadRouting(ExchangeSlots& slots, const SlotUse& use, int source, const char* what) const;
  // Makes the rows `tokens` (ascending) of `source` readable. Does nothing if the source is on this
  // host.
  void FetchRows(ExchangeSlots& slots, const SlotUse& use, int source,
                 std::span<const int32_t> tokens, const char* what) const;
  const std::byte* Row(const ExchangeSlots& slots, const SlotUse& use, int source,
                       int64_t token) const {
    return slots.At(use, source, RowOffset(token));
  }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t capacity() const { return capacity_; }

 private:
  size_t RowOffset(int64_t token) const { return rows_ + token * row_bytes_; }

  int64_t hidden_, capacity_, row_bytes_;
  int k_;
  RowFormat format_;
  size_t routing_;  // [1 + capacity · k] i32: tokens, then ids
  size_t rows_;     // [capacity, H]
};

}  // namespace switchyard
