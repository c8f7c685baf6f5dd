// The all-to-all of training: messages of any length between all ranks of a group.
//
// The dispatchers of src/moe are for inference. They round rows to the transport dtype, weight and
// sum expert outputs before returning them, and transfer at most float32. Training needs each
// slot's output at the token's own rank (the gradient of its router weight is dy · output), the
// gradient of each output at the expert's rank, and float64 for gradient checks. So each (token,
// slot) has its own row, which travels as bytes, in both directions. As in src/moe, the gradient of
// combine is a dispatch with the forward routing, and the gradient of dispatch is a combine. All
// state of a batch is in its handle, so any number of exchanges can be in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard::train {

// One exchange between Open and Release. Owned by the caller, who can reuse it for the next one.
struct ExchangeHandle {
  // After Open: the send buffer for each member.
  std::vector<std::byte*> to;
  // After Wait: the message from each member.
  std::vector<std::span<const std::byte>> from;

  // Internal state of the exchange.
  std::vector<size_t> bytes;
  std::vector<std::byte> own;  // message of the rank to itself
  uint64_t number = 0;
};

// Protocol: Open, write, Post, …, Wait, read, Release. Post starts the transfer and returns (the
// synchronous form waits for all messages); Wait blocks until all messages have arrived. Other work
// can run in between, including calls with other handles. Every rank of the group opens and posts
// its exchanges in the same order. The rank's thread only.
class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Begins an exchange of bytes[r] to each member r. Errors: kResource if a message exceeds
  // message_bytes or more than `places` exchanges are in flight; kTimeout.
  virtual void Open(std::span<const size_t> bytes, ExchangeHandle* handle) = 0;
  virtual void Post(ExchangeHandle* handle) = 0;
  // Whether Wait would return immediately.
  virtual bool Arrived(ExchangeHandle* handle) = 0;
  virtual void Wait(ExchangeHandle* handle) = 0;
  // Ends the use of the receive buffers: `from` becomes invalid.
  virtual void Release(ExchangeHandle* handle) = 0;
};

// For a single rank.
std::unique_ptr<RowExchange> MakeLocalExchange();

struct RowExchangeOptions {
  size_t message_bytes = 0;  // maximum message from one member to another
  int places = 4;            // maximum number of exchanges in flight
  // Exchanges in pairwise rounds: in each round a rank writes to one member and waits for another
  // one. This avoids congestion on networks that many concurrent senders would saturate.
  bool synchronous = false;
};
// Over symmetric memory. Construction allocates it, on every rank of the world in the same order.
// `group`: world ranks, this one included.
std::unique_ptr<RowExchange> MakeRowExchange(SymmetricMemory& memory, std::vector<int> group,
                                             const RowExchangeOptions& options);
// Bytes that the exchange allocates in each rank's arena.
size_t RowExchangeBytes(int group_size, const RowExchangeOptions& options);

}  // namespace switchyard::train
