// The routing of a pass: recorded on the device, and reported to an observer after the pass.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/cuda_device.h"
#include "moe/cuda/routing_record.h"
#include "moe/routing_log_shape.h"
#include "moe/routing_observer.h"
#include "moe/state.h"

namespace switchyard::cuda {

// One per MoeState of an observed backend. Its memory has fixed addresses, so captured passes
// record too. Begin, Read and Report run around a pass, in this order. Begin and Read only enqueue
// work; Report waits for it. Used by the rank's thread; borrows observer and device.
//
//   Begin    clears the counts, and sets how many rows are recorded: 0 if not observed
//   kernels  add counts or store ids by RecordOf, and AddDispatched
//   Read     copies them to page-locked memory
//   Report   calls the observer, layer by layer
class RoutingLog {
 public:
  // `layers` [shape.layers]: their indices in the model, for the observer.
  RoutingLog(RoutingObserver& observer, std::vector<int> layers, const RoutingLogShape& shape,
             CudaDevice& device);

  // `rows`: of this rank's group, without padding; the first one is row `first` of its batch.
  void Begin(int64_t rows, int64_t first);
  // Where the round of `state` records layer `index` of `layers`. `own`: the tokens that this rank
  // reports. `physical_of`: as in RoutingRecord.
  RoutingRecord RecordOf(int index, const MoeState& state, const OwnTokens& own,
                         const int32_t* physical_of) const;
  // Enqueues the addition of counts [shape.local], the rows of each expert of this rank.
  void CountDispatched(int index, const int32_t* counts) const;
  bool counts_dispatched() const { return shape_.dispatch; }
  void Read();
  void Report();

 private:
  int32_t* CountsOf(int index) const;  // on the device
  void ReportTokens(int index) const;
  void ReportCounts(int index) const;

  RoutingObserver& observer_;
  const std::vector<int> layers_;
  const RoutingLogShape shape_;
  CudaDevice& device_;
  const DeviceMemory memory_;  // control, counts, ids
  const PinnedMemory counts_;  // [layers] counts
  const PinnedMemory ids_;     // [2, layers, rows_, top_k]
  const Event read_{cudaEventDisableTiming};
  int64_t rows_ = 0, first_row_ = 0;
  bool observed_ = false;  // whether the pass is observed
};

}  // namespace switchyard::cuda
