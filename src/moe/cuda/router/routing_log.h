// The routing of a pass: recorded on the device, and reported to an observer after the pass.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/device/cuda_device.h"
#include "moe/cuda/router/select_experts.h"
#include "moe/router/routing_log_shape.h"
#include "moe/router/routing_observer.h"
#include "moe/state.h"

namespace switchyard::cuda {

// One per MoeState of an observed backend. Its memory has fixed addresses, so that captured passes
// can record too. Begin, Read and Report run around a pass, in this order. Begin and Read only
// enqueue work; Report waits for it. The next pass may begin before the previous one is reported.
// Used by the rank's thread; borrows observer and device.
//
//   Begin    clears the counts and times, and sets how many rows are recorded: 0 if the pass is not
//            observed
//   kernels  add counts or store ids by RecordOf, and AddDispatched; MarkStage adds times
//   Read     copies them to page-locked memory of the pass
//   Report   calls the observer, layer by layer
class RoutingLog {
 public:
  // `layers` [shape.layers]: index in the model of each layer, for the observer.
  RoutingLog(RoutingObserver& observer, std::vector<int> layers, const RoutingLogShape& shape,
             CudaDevice& device);

  // One in so many passes is clocked, because the kernels of MarkStage, three or more per layer,
  // lengthen a decode step.
  static constexpr uint64_t kClockedPasses = 64;

  // Maximum number of passes that are read but not reported.
  static constexpr size_t kMaxPending = 2;

  // `rows`: number of rows of this rank's group, without padding. `first`: index of the first of
  // these rows in the batch.
  void Begin(uint64_t pass, int64_t rows, int64_t first);
  // Returns the record of the current round of `state` in layer layers[index]. `own`: the tokens
  // that this rank reports. `physical_of`: as in RoutingRecord. Passes that stream experts are not
  // captured, so the call notes on the host whether this pass does.
  RoutingRecord RecordOf(int index, const MoeState& state, const OwnTokens& own,
                         const int32_t* physical_of);
  // Enqueues the addition of `counts` [shape.local], the numbers of rows of this rank's experts, to
  // the record of layer layers[index].
  void CountDispatched(int index, const int32_t* counts) const;
  bool counts_dispatched() const { return shape_.dispatch; }
  // Whether the pass that has begun, `pass`, is clocked.
  bool clocks(uint64_t pass) const {
    return observed_ && observer_.needs_times() && (pass + 1) % kClockedPasses == 0;
  }
  // Enqueues a reading of the clock, unless the present work counts to `part` already. Only in
  // clocked passes.
  void MarkStage(int64_t MoeTimes::*part);
  // `clocked`: whether the times of the pass are reported.
  void Read(bool clocked = false);
  // Reports all passes up to the one with number `last`, in order.
  void Report(uint64_t last);

 private:
  struct PassRows {
    uint64_t pass = 0;
    int64_t rows = 0, first_row = 0;
    bool streamed = false;
  };
  // The record of a pass on the host.
  struct Copy {
    Copy(size_t counts_bytes, size_t ids_bytes) : counts(counts_bytes), ids(ids_bytes) {}
    PassRows of;
    bool clocked = false;
    const PinnedMemory times{kParts * sizeof(int64_t)};
    const PinnedMemory counts;  // [layers, CountsOfLayer]
    const PinnedMemory ids;     // [2, layers, rows, top_k]
    const Event read{cudaEventDisableTiming};
  };

  // The first words of memory_. Begin writes them.
  static constexpr int kParts = 3;
  struct Head {
    RoutingControl control;
    int64_t times[kParts] = {};  // of the fields of MoeTimes
  };

  int32_t* CountsOf(int index) const;  // on the device
  void Report(const Copy& copy) const;
  void ReportTokens(const Copy& copy, int index) const;
  void ReportCounts(const Copy& copy, int index) const;

  RoutingObserver& observer_;
  const std::vector<int> layers_;
  const RoutingLogShape shape_;
  CudaDevice& device_;
  const DeviceMemory memory_;  // Head, then counts, then ids
  std::deque<Copy> copies_;    // [kMaxPending], used in round-robin order
  size_t oldest_ = 0, pending_ = 0;
  PassRows now_;           // the pass that is being enqueued
  bool observed_ = false;  // whether that pass is observed
  int part_ = -1;          // the index in Head::times of the work that is enqueued; −1: none
};

}  // namespace switchyard::cuda
