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
  uint64_t offset = 0, bytes = 0;  // in a rank's arena
};

// Transports the operations of SymmetricMemory to the arena of a rank whose memory is not mapped
// here. At the other end a dedicated thread of that rank's process applies them through an
// RemoteArenaAccess. So a rank can be written to and read from at any time, whatever its own thread
// does.
//
// Owned by the SharedArena of the rank's process, which thus serves one rank only. Used by the
// rank's thread. Every operation fails with the reason of the abort when the arena is aborted.
class RemoteRanks {
 public:
  // Without an abort: exchanges kBye with the peers and waits briefly for theirs, since they may
  // still have to send unread data. After an abort by a rank of this host: forwards its reason,
  // since peers may detect this rank's exit before they hear from the aborting one.
  virtual ~RemoteRanks() = default;

  virtual bool IsRemote(int rank) const = 0;
  // Copies the ranges of `image` to the same offsets of the rank's arena, in order, and then sets
  // the flag there. Returns when `image` may be overwritten. Error kTimeout, kPeer.
  virtual void Put(int rank, const std::byte* image, std::span<const ByteRange> ranges,
                   size_t flag_offset, uint32_t value, std::chrono::milliseconds timeout) = 0;
  // Copies the range of the rank's arena to the same offset of `image`.
  virtual void Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
                     std::chrono::milliseconds timeout) = 0;
  // Notifies all peers that can be reached without waiting.
  virtual void Abort(std::string_view reason) noexcept = 0;
};

// One rank's arena as other hosts access it. Validates all arguments, because they come from the
// network. Used by the threads of a RemoteRanks, one per peer or one for all.
class RemoteArenaAccess {
 public:
  RemoteArenaAccess(SharedArena& arena, int rank) : arena_(*arena.impl_), rank_(rank) {}

  int rank() const { return rank_; }
  std::span<std::byte> Bytes(ByteRange range) const;  // Error kInvalid if outside the arena
  void Raise(uint64_t flag_offset, uint32_t value) const;
  bool aborted() const;
  std::string AbortReason() const;  // once aborted()
  [[noreturn]] void ThrowAborted() const;
  void Abort(std::string_view reason) const;  // the ranks of this host; peers notify their own

 private:
  SharedArena::Impl& arena_;
  int rank_;
};

}  // namespace switchyard
