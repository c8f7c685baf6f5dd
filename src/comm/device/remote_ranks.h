// Interface to the ranks of other hosts. Internal to comm/device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

struct ByteRange {
  uint64_t offset = 0, bytes = 0;  // of a range in a rank's arena
};

// Transports the operations of SymmetricMemory to the arena of a rank whose memory is not mapped
// here. At the other end a dedicated thread of that rank's process applies them through a
// RemoteArenaAccess. So a rank's arena can be written and read at any time, whatever the rank's own
// thread does.
//
// Owned by the SharedArena of the rank's process. Such a SharedArena serves one rank only. Used by
// the rank's thread. Every operation fails with the reason of the abort when the arena is aborted.
class RemoteRanks {
 public:
  // Without an abort: sends kBye to the peers and waits briefly for their kBye, because data from
  // them may still arrive. After an abort by a rank of this host: forwards the reason. Otherwise,
  // peers may detect this rank's exit before they receive the reason from the aborting rank.
  virtual ~RemoteRanks() = default;

  virtual bool IsRemote(int rank) const = 0;
  // Copies the ranges of `image` to the same offsets of the rank's arena, in order, and then sets
  // the flag there. Returns when `image` may be overwritten. Throws Error kTimeout or kPeer.
  virtual void Put(int rank, const std::byte* image, std::span<const ByteRange> ranges,
                   size_t flag_offset, uint32_t value, std::chrono::milliseconds timeout) = 0;
  // Copies the range of the rank's arena to the same offset of `image`.
  virtual void Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
                     std::chrono::milliseconds timeout) = 0;
  // Notifies all peers that can be reached without waiting.
  virtual void Abort(std::string_view reason) noexcept = 0;
  // Sends this rank's heartbeat counter to rank 0, or from rank 0 to every other host. Skips a peer
  // if sending would have to wait. Sends at most once per kBeatInterval, but a counter of 0 at any
  // time. Puts and fetches increment and send the counter while they wait, as SymmetricMemory's
  // waits do.
  virtual void SendBeats(uint64_t beats) noexcept = 0;
};

// Maximum age of a heartbeat counter on another host. This is short enough, because the shortest
// limit on the time without a heartbeat is 1.5 s: half of the minimum --watchdog-timeout.
inline constexpr std::chrono::milliseconds kBeatInterval{500};

// One rank's arena as other hosts access it. Validates all arguments, because they come from the
// network. Used by the threads of a RemoteRanks: one thread for each peer, or one for all peers.
class RemoteArenaAccess {
 public:
  RemoteArenaAccess(SharedArena& arena, int rank) : arena_(*arena.impl_), rank_(rank) {}

  int rank() const { return rank_; }
  std::span<std::byte> Bytes(ByteRange range) const;  // Error kInvalid if outside the arena
  void Raise(uint64_t flag_offset, uint32_t value) const;
  uint64_t Beat() const;  // adds a heartbeat of `rank()`, returns the counter; from its thread only
  void SetBeats(int rank, uint64_t beats) const;  // `rank` is on another host
  bool aborted() const;
  std::string AbortReason() const;  // call after aborted() is true
  [[noreturn]] void ThrowAborted() const;
  void Abort(std::string_view reason) const;  // aborts the ranks of this host only

 private:
  SharedArena::Impl& arena_;
  int rank_;
};

}  // namespace switchyard
