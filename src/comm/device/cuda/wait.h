// Timeouts of kernels that wait for a peer, shared by host and device code.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// A report in page-locked memory that is mapped into the device. A kernel that times out writes the
// waiting rank and the missing peer to it, and returns. From then on no kernel with this report
// waits, so the stream drains. The host checks the report after stream synchronization and throws
// (PeerMemory::CheckTimeouts).
struct WaitTimeoutReport {
  uint32_t failed = 0;  // written after the other fields
  int32_t stage = 0;    // WaitStage
  int32_t rank = 0, peer = 0;
  uint32_t wanted = 0, seen = 0;
};

enum class WaitStage : int32_t {
  kDispatch,
  kCombine,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kStageRows,  // hidden rows of the previous pipeline stage
  kStageRoom,  // room for hidden rows at the next one
};

struct WaitLimit {
  WaitTimeoutReport* report = nullptr;  // device address
  uint64_t nanoseconds = 0;
  int32_t rank = 0;  // index of the waiting rank in its PeerMemory
};

}  // namespace switchyard::cuda
