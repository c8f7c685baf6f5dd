// The all-to-all of training: messages of any length between all ranks of a group.
//
// The dispatchers of src/moe serve: they round rows to the dtype in flight, weight and add the
// outputs of experts before anyone sees them, and move float32 at most. Training needs each slot's
// output at the token's own rank (the gradient of its router weight is dy · output), the gradient
// of each output at the expert's, and float64 where gradients are checked. So rows travel one for
// each (token, slot), both ways, as bytes. What remains the same: the gradient of combine is a
// dispatch by the forward pass's routing, the gradient of dispatch a combine, and all state of a
// batch is in its handle, so that any number of exchanges is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard::train {

// One exchange between Open and Release. Owned by whoever runs it; reused for the next.
struct ExchangeHandle {
  // After Open: where the message to each member is to be written.
  std::vector<std::byte*> to;
  // After Wait: the message from each member.
  std::vector<std::span<const std::byte>> from;

  // The exchange's own.
  std::vector<size_t> bytes;
  std::vector<std::byte> own;  // to and from the rank itself
  uint64_t number = 0;
};

// Open, write, Post, …, Wait, read, Release: Post starts and returns (in the synchronous form it
// waits for all), Wait waits, and other work, other handles' calls included, fits in between. Every
// rank of the group opens and posts its exchanges in the same order. Used by the rank's thread.
class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Begins an exchange of bytes[r] to each member r. Errors: kResource where a message is longer
  // than was planned for, or more exchanges are under way than there are places for; kTimeout.
  virtual void Open(std::span<const size_t> bytes, ExchangeHandle* handle) = 0;
  virtual void Post(ExchangeHandle* handle) = 0;
  // Whether Wait would not wait.
  virtual bool Arrived(ExchangeHandle* handle) = 0;
  virtual void Wait(ExchangeHandle* handle) = 0;
  // The messages are read no more: `from` is gone.
  virtual void Release(ExchangeHandle* handle) = 0;
};

// Of one rank alone.
std::unique_ptr<RowExchange> MakeLocalExchange();

struct RowExchangeOptions {
  size_t message_bytes = 0;  // the longest from one member to another
  int places = 4;            // exchanges under way at once
  // Pairwise rounds, in which a rank writes to one member and waits for another, instead of writing
  // to all: kind to networks that many senders at once would choke.
  bool synchronous = false;
};
// Over symmetric memory. Construction allocates, on every rank of the world in the same order.
// `group`: world ranks, this one included.
std::unique_ptr<RowExchange> MakeRowExchange(SymmetricMemory& memory, std::vector<int> group,
                                             const RowExchangeOptions& options);
// What that takes of each rank's arena.
size_t RowExchangeBytes(int group_size, const RowExchangeOptions& options);

}  // namespace switchyard::train
