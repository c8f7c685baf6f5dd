// The ranks of other hosts, as one rank reaches them. Internal to comm/device.
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

// Carries what SymmetricMemory does to the arena of a rank whose memory is not mapped here. At the
// other end a thread of that rank's process, which takes no part in anything else, applies it
// through an ArenaDoor; so a rank can be written to and read from whatever it is doing.
//
// Owned by the SharedArena of the rank's process, which thus serves one rank only. Used by the
// rank's thread. Every operation ends, with the words of the abort, when the arena is aborted.
class RemoteRanks {
 public:
  // Says goodbye where nothing was aborted, and waits a little for the peers to say it, since they
  // may still have to send what nobody will read. Where a rank of this host aborted, its reason is
  // passed on: peers may hear that this rank is gone before they hear from that one.
  virtual ~RemoteRanks() = default;

  virtual bool IsRemote(int rank) const = 0;
  // Copies the ranges of `image` to the same places of the rank's arena, in order, and then raises
  // the flag there. Returns when `image` may be overwritten. Error kTimeout, kPeer.
  virtual void Put(int rank, const std::byte* image, std::span<const ByteRange> ranges,
                   size_t flag_offset, uint32_t value, std::chrono::milliseconds timeout) = 0;
  // Copies the range of the rank's arena to the same place of `image`.
  virtual void Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
                     std::chrono::milliseconds timeout) = 0;
  // Tells all of them, as far as they can be reached at once.
  virtual void Abort(std::string_view reason) noexcept = 0;
};

// One rank's arena as other hosts reach it. Everything is checked, because it came over a wire.
// Threads of a RemoteRanks, each for a peer or for all.
class ArenaDoor {
 public:
  ArenaDoor(SharedArena& arena, int rank) : arena_(*arena.impl_), rank_(rank) {}

  int rank() const { return rank_; }
  std::span<std::byte> Bytes(ByteRange range) const;  // Error kInvalid where it is no part of it
  void Raise(uint64_t flag_offset, uint32_t value) const;
  bool aborted() const;
  std::string AbortReason() const;  // once aborted()
  [[noreturn]] void ThrowAborted() const;
  void Abort(std::string_view reason) const;  // the ranks of this host; peers tell theirs

 private:
  SharedArena::Impl& arena_;
  int rank_;
};

}  // namespace switchyard
