// Deadlines of waits for ranks that may compute for long.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// The progress of ranks of different pipeline stages. A rank may compute for longer than the
// timeout of the memory, while other ranks wait for it. So a wait ends with an error only if the
// awaited rank has made no progress for the timeout.
//
// A rank's progress is a count that its peers can read: a logical clock (L. Lamport, "Time, Clocks,
// and the Ordering of Events in a Distributed System", 1978). Advance sets it above all counts that
// the rank has seen. A waiting rank takes over the count of the rank that it waits for, so the last
// rank in a chain of waits sees the progress of the first one. If ranks wait for each other in a
// circle, none of them advances. Their counts become equal and no longer change, so the waits end.
//
// Owned by a rank; used by the rank's thread only.
class ProgressClock {
 public:
  struct Options {
    // World ranks of other stages that may wait for this rank, and for which it may wait.
    std::vector<int> peers;
    // Further ranks that may wait for this rank while it waits itself.
    std::vector<int> followers;
    std::function<std::string(int)> describe;  // names a rank in errors
  };
  // Allocates symmetric memory, so every rank of the world constructs its clock at the same place.
  ProgressClock(SymmetricMemory& memory, Options options);
  ProgressClock(const ProgressClock&) = delete;
  ProgressClock& operator=(const ProgressClock&) = delete;
  // Bytes that a clock allocates in each rank's arena.
  static size_t BytesPerRank();

  // This rank has done some work, such as an operation of a pass. Cheap: peers see it at most
  // eight times in each timeout, and twice a second.
  void Advance();
  // Waits until the local flag has reached `value`, as SymmetricMemory::Wait does. Error kTimeout
  // names this rank, `peer` and `stage`. If `action` is not null, calls it every millisecond; it
  // may wait too.
  void Wait(size_t flag, uint32_t value, int peer, const char* stage,
            const std::function<void()>& action = nullptr);

 private:
  uint32_t CountOf(int rank) const;  // the last count that `rank` has raised here
  void Raise(uint32_t count);        // at the peers

  SymmetricMemory& memory_;
  const Options options_;
  const std::chrono::milliseconds interval_;
  const size_t counts_;  // one cache line for each rank of the world
  uint32_t count_ = 0;   // of this rank
  std::chrono::steady_clock::time_point raised_{};
};

}  // namespace switchyard
