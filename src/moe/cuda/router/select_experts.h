// Expert selection on the device: SelectExperts of moe/router/router.h, and the mapping to physical
// or local experts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moe/gpu_limits.h"

namespace switchyard::cuda {

// Where kernels record the choices of a layer: counts, and in per-token modes the ids.

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

// Reads the GPU's clock when the kernels enqueued before have ended. Subtracts the time, in
// nanoseconds, from times[begins], and adds it to times[ends]; −1: neither. So a pair of calls adds
// the time between them.
cudaError_t ChangeStage(int64_t* times, int ends, int begins, cudaStream_t stream);

// Where a selection records faults (moe/router/router_fault.h). It covers tokens [begin, end) of
// the call. The record of token t is records[index[t - begin]]; an earlier fault in it is kept.
struct FaultRecords {
  int32_t* records = nullptr;      // null: faults are not recorded
  const int32_t* index = nullptr;  // [end - begin]
  int64_t begin = 0, end = 0;
  int32_t of_expert_0 = 0;  // fault code of the layer's expert 0; expert e has of_expert_0 + e
};

// Values of SelectExpertsParams::scoring. 0: softmax, 1: sigmoid, 2: softmax over the selected
// experts.
constexpr int kSparseMixerScoring = 3, kTopKSigmoidScoring = 4, kSqrtSoftplusScoring = 5;

// The fields of RouterConfig; enums are passed as their integer values.
struct SelectExpertsParams {
  const float* logits = nullptr;           // [tokens, num_logits]
  const float* correction_bias = nullptr;  // [num_logits] or null
  int64_t tokens = 0;
  int num_experts = 0, top_k = 0;
  int zero_experts = 0;  // RouterConfig::zero_experts
  int scoring = 0;       // RouterConfig::Scoring; see kSparseMixerScoring
  bool renormalize = false;
  int num_groups = 1, topk_groups = 1;
  // A group's score is the sum of its two best scores; false: its best score.
  bool top2_sum = false;
  float scaling = 1.0f;
  float jitter = 0.0f;  // used by SparseMixer

  // With RouterConfig::by_token: the experts of each token id [token_rows, top_k]; null: experts
  // are selected. The id of token t is the whole number token_ids[t · token_stride].
  const int32_t* token_experts = nullptr;
  int64_t token_rows = 0;
  const float* token_ids = nullptr;
  int64_t token_stride = 0;

  // [num_experts] the id that is written for each logical expert, or −1. Null: the logical id
  // itself.
  const int32_t* places = nullptr;
  int32_t* logical = nullptr;  // [tokens, top_k], −1: none; or null
  int32_t* ids = nullptr;      // [tokens, top_k]
  float* weights = nullptr;    // [tokens, top_k]
  // [tokens] the sum of the weights of experts without computation, in slot order. Their slots are
  // written without an expert: ids −1, weight 0. Set if there are such experts.
  float* zero_weights = nullptr;
  FaultRecords faults;
  RoutingRecord record;

  __host__ __device__ int num_logits() const { return num_experts + zero_experts; }
};
// Whether the kernels that select experts support the sizes and options.
inline bool SelectsExperts(const SelectExpertsParams& p) {
  if (p.scoring == kSparseMixerScoring && (p.num_groups > 1 || p.correction_bias != nullptr))
    return false;
  if (p.token_experts != nullptr &&
      (p.scoring != kSqrtSoftplusScoring || p.token_rows == 0 || p.token_ids == nullptr ||
       p.num_groups > 1 || p.zero_experts > 0 || p.correction_bias != nullptr))
    return false;
  if (p.zero_experts > 0 && (p.num_groups > 1 || p.zero_weights == nullptr)) return false;
  return p.num_experts <= kMaxRouterExperts && p.num_logits() <= kMaxRouterLogits &&
         p.top_k <= kMaxTopK && p.num_groups <= kMaxRouterGroups;
}

// One warp per token. A token with a score that is not finite gets experts 0 to top_k - 1 with
// weights NaN, as on CPUs. Results equal those on CPUs except for the last bits of exponentials and
// sums. Returns cudaErrorInvalidValue for parameters that SelectsExperts rejects.
cudaError_t SelectExpertsOnDevice(const SelectExpertsParams& p, cudaStream_t stream);

// Multiplies rows by the weights of their experts (RouterConfig::scales_input, k = 1), and sets
// these weights to 1. A weight that is NaN or 0 stays.
struct ScaleInputRowsParams {
  const float* x = nullptr;  // [tokens, width]
  int64_t tokens = 0, width = 0;
  float* weights = nullptr;  // [tokens]
  float* y = nullptr;        // [tokens, width]; not x
};
cudaError_t ScaleInputRows(const ScaleInputRowsParams& p, cudaStream_t stream);

// Maps physical experts to the ids that the exchange or this rank's GEMMs read.

struct PlacePhysicalParams {
  const int32_t* logical = nullptr;   // [tokens, k] −1: none
  const int32_t* physical = nullptr;  // [tokens, k] −1: none
  // [num_physical] local id on this rank, or −1. Used if rows are not exchanged. Null: the
  // identity.
  const int32_t* local_ids = nullptr;
  int64_t tokens = 0;
  int k = 0;
  int32_t* ids = nullptr;  // [tokens, k]
  RoutingRecord record;
};
cudaError_t PlacePhysical(const PlacePhysicalParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
