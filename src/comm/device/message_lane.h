// Messages from one rank to another, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "comm/device/progress_clock.h"
#include "comm/device/symmetric_memory.h"

namespace switchyard {

struct MessageLaneOptions {
  size_t part_bytes = 0;  // capacity of a place; a longer message is sent in several parts
  int places = 2;         // number of parts that can be sent before the receiver reads one
};

// The lane on which a rank receives from one rank and sends to another one, over symmetric memory.
// A part of a message is written into the receiver's arena. Each wait has the memory's timeout, and
// its error names the waiting rank and the rank that it waits for. With a clock, only the time
// without progress of the awaited rank counts. Owned by a rank; used by the rank's thread only.
class MessageLane {
 public:
  // Allocates symmetric memory, so every rank of the world constructs its lanes in the same order
  // with the same options. `from`, `to`: world ranks, −1: none. If `to` of rank r is s, then `from`
  // of rank s is r. `name`: name of the messages in errors.
  MessageLane(SymmetricMemory& memory, int from, int to, const MessageLaneOptions& options,
              const std::string& name);
  // Bytes that a lane allocates in each rank's arena.
  static size_t BytesPerRank(const MessageLaneOptions& options);

  // Copies the message and returns. Blocks while all places are full.
  void Send(std::span<const std::byte> message);
  // From now on waits end by the clock, which tells the progress of the two other ranks. It has to
  // outlive the lane. Each message advances it.
  void UseClock(ProgressClock& clock) { clock_ = &clock; }
  // Requires a clock. Send calls `action` every millisecond while all places are full.
  void WhileFull(std::function<void()> action) { while_full_ = std::move(action); }
  // Receives the next message. `idle`: waits for its first part without a deadline.
  std::string Receive(bool idle = false);
  // Receives a message of known length. Error kPeer if the message has another length or another
  // tag.
  void Receive(std::span<std::byte> message);
  // The tag of the messages that are sent and of the messages of known length that are received
  // from now on; initially 0.
  void SetTag(uint64_t tag) { tag_ = tag; }
  // Whether a part of the next message has arrived.
  bool Arrived() const;

 private:
  // The first line of a part.
  struct Header {
    uint64_t length = 0;  // of the message
    uint64_t tag = 0;
  };
  size_t PlaceOf(uint64_t part) const;
  void Wait(size_t flag, uint32_t value, int peer, const std::string& stage,
            const std::function<void()>& action = nullptr);
  // Waits until the place of part `sent_` is free.
  void AwaitPlace();
  // Waits for the next part.
  Header AwaitPart(bool idle);
  // Error kPeer if a part does not belong to the expected message.
  void Check(const Header& header, size_t length) const;
  // Copies the next part, which has arrived, and frees its place.
  void TakePart(std::span<std::byte> to);

  SymmetricMemory& memory_;
  const int from_, to_;
  const MessageLaneOptions options_;
  const std::string name_, room_;  // descriptions of the waits
  // Part n of a sender is in place n % places of the receiver's arena. The flag `arrived` at the
  // receiver counts parts sent; `read` at the sender counts parts received.
  const size_t parts_, arrived_, read_;
  ProgressClock* clock_ = nullptr;
  std::function<void()> while_full_;  // or null
  uint64_t sent_ = 0, received_ = 0;  // numbers of parts; flags have their low 32 bits
  uint64_t tag_ = 0;
};

}  // namespace switchyard
