// Where kernels record the choices of a layer: counts, and in per-token modes the ids.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace switchyard::cuda {

// Located in device memory at a fixed address, and set before each pass. So a captured pass follows
// the start and the stop of recording without being captured again.
struct RoutingControl {
  int32_t rows = 0;    // rows of this rank's group that are recorded; 0: none
  int32_t active = 0;  // 1: dispatched rows are counted
};

// The value of each id in a row that this rank has not reported. RoutingLog sets all bytes of the
// ids to kUnreportedByte.
constexpr int32_t kUnreportedByte = 0xfe;
constexpr int32_t kUnreported = static_cast<int32_t>(0xfefefefeu);

// The record of one layer. All pointers are device memory. Kernels add to the counts.
struct RoutingRecord {
  const RoutingControl* control = nullptr;  // null: nothing is recorded
  // The tokens [begin, end) of the call are reported by this rank; the first one is row `first_row`
  // of its group.
  int64_t begin = 0, end = 0, first_row = 0;
  // [num_experts] the physical expert of each logical one; null: the identity.
  const int32_t* physical_of = nullptr;
  int32_t* logical_counts = nullptr;   // [num_experts] or null
  int32_t* physical_counts = nullptr;  // [num_physical], with logical_counts
  int32_t* logical_ids = nullptr;      // [rows, top_k] or null
  int32_t* physical_ids = nullptr;     // [rows, top_k], with logical_ids
};

// sums[i] += counts[i], if control->active.
cudaError_t AddDispatched(const RoutingControl* control, const int32_t* counts, int experts,
                          int32_t* sums, cudaStream_t stream);

}  // namespace switchyard::cuda
