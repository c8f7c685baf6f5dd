// The messages between ranks of different hosts. Internal to comm/device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard {

enum class FrameKind : uint32_t {
  kWrite,          // `count` ranges: a table of ByteRange, then their bytes
  kWriteAndRaise,  // the same, and then the flag at `offset` is raised to `value`
  kFetch,          // wants `count` bytes at `offset`; answered by a kBytes with them
  kBytes,
  kAbort,  // `count` bytes of reason
  kBye,    // nothing follows
};

// The head of a message. Same byte order at both ends: same build.
struct Frame {
  FrameKind kind{};
  uint32_t value = 0;
  uint64_t offset = 0;
  uint64_t count = 0;
};
static_assert(sizeof(Frame) == 24);

inline constexpr size_t kMostFrameRanges = 500;   // of one frame
inline constexpr size_t kMostReasonBytes = 1000;  // bytes

}  // namespace switchyard
