// How kernels that wait for a peer end when it does not come: shared by host and device code.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// Page-locked, mapped into the device. A kernel whose deadline passes writes who waited for whom
// and gives up; from then on no kernel with this report waits, so that the stream drains. The host
// looks after it has waited for the stream, and throws (PeerMemory::CheckWaits).
struct WaitReport {
  uint32_t failed = 0;  // set last
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
};

struct WaitLimit {
  WaitReport* report = nullptr;  // device address
  uint64_t nanoseconds = 0;
  int32_t rank = 0;  // of the waiting one, in the world
};

}  // namespace switchyard::cuda
