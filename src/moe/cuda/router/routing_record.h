// Where kernels record the choices of a layer: counts, and in per-token modes the ids.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace switchyard::cuda {

// Located in device memory at a fixed address, and set before each pass. So recording can start and
// stop without capturing the pass again.
struct RoutingControl {
  int32_t rows = 0;    // number of rows of this rank's group that are recorded; 0: none
  int32_t active = 0;  // 1: dispatched rows are counted
};

// All bytes of the ids in rows that this rank has not reported. RoutingLog sets them before a pass.
constexpr int32_t kUnreportedByte = 0xfe;
constexpr int32_t kUnreported = static_cast<int32_t>(0xfefefefeu);

// Where kernels record one layer. All pointers are device memory. Kernels add to the counts.
struct RoutingRecord {
  const RoutingControl* control = nullptr;  // null: nothing is recorded
  // This rank reports tokens [begin, end) of the call. Token `begin` is row `first_row` of its
  // group.
  int64_t begin = 0, end = 0, first_row = 0;
  // [num_experts] the physical expert of each logical expert; null: the identity.
  const int32_t* physical_of = nullptr;
  int32_t* logical_counts = nullptr;   // [num_experts] or null
  int32_t* physical_counts = nullptr;  // [num_physical]; set if logical_counts is set
  int32_t* logical_ids = nullptr;      // [rows, top_k] or null
  int32_t* physical_ids = nullptr;     // [rows, top_k]; set if logical_ids is set
};

// sums[i] += counts[i], if control->active.
cudaError_t AddDispatched(const RoutingControl* control, const int32_t* counts, int experts,
                          int32_t* sums, cudaStream_t stream);

}  // namespace switchyard::cuda
