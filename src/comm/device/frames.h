// Wire format of messages between ranks of different hosts. Internal to comm/device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard {

enum class FrameKind : uint32_t {
  kWrite,          // `count` ranges: a table of ByteRange, then their bytes
  kWriteAndRaise,  // as kWrite, then sets the flag at `offset` to `value`
  kFetch,          // requests `count` bytes at `offset`; the peer returns a kBytes frame
  kBytes,
  kBeat,   // `count` is the sender's heartbeat counter
  kAbort,  // `count` bytes of reason
  kBye,    // the last frame of a connection
};

// The header of a message. Both ends run the same build, so byte order is the same.
struct Frame {
  FrameKind kind{};
  uint32_t value = 0;
  uint64_t offset = 0;
  uint64_t count = 0;
};
static_assert(sizeof(Frame) == 24);

inline constexpr size_t kMaxFrameRanges = 500;   // ranges in one frame
inline constexpr size_t kMaxReasonBytes = 1000;  // bytes of an abort reason

}  // namespace switchyard
