// Device-side flags of peers, and waits for them with a timeout.
#pragma once

#include "comm/device/cuda/wait.h"

namespace switchyard::cuda {

__device__ __forceinline__ uint32_t LoadFlag(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Release store: all earlier writes of this thread are visible to a thread that acquires the flag.
__device__ __forceinline__ void RaiseFlag(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// RaiseFlag without a fence, for a thread that has called __threadfence_system after its writes. So
// one fence serves several flags.
__device__ __forceinline__ void RaiseFencedFlag(uint32_t* flag, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t Nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Polls until `condition(seen)` is true. `condition` stores in `seen` the value that it has read; a
// timeout reports this value and `wanted`. Returns false if this wait or another wait with the same
// report timed out. The caller must then not use data of the peer.
template <typename Condition>
__device__ __forceinline__ bool WaitUntil(const Condition& condition, uint32_t wanted,
                                          const WaitLimit& limit, WaitStage stage, int peer) {
  uint32_t seen = wanted;
  if (condition(seen)) return true;
  const uint64_t start = Nanoseconds();
  while (true) {
    for (int i = 0; i < 256; ++i) {
      if (condition(seen)) return true;
    }
    volatile WaitTimeoutReport* report = limit.report;
    if (report->failed) return false;
    if (Nanoseconds() - start < limit.nanoseconds) continue;
    report->stage = static_cast<int32_t>(stage);
    report->rank = limit.rank;
    report->peer = peer;
    report->wanted = wanted;
    report->seen = seen;
    __threadfence_system();
    report->failed = 1;
    return false;
  }
}

// Waits until the flag reaches `value` (modulo 2^32: rounds may wrap).
__device__ inline bool WaitFlag(const uint32_t* flag, uint32_t value, const WaitLimit& limit,
                                WaitStage stage, int peer) {
  const auto reached = [&](uint32_t& seen) {
    seen = LoadFlag(flag);
    return static_cast<int32_t>(seen - value) >= 0;
  };
  return WaitUntil(reached, value, limit, stage, peer);
}

}  // namespace switchyard::cuda
