// Fused expert selection and row order by expert in one kernel, for few tokens whose rows stay on
// this rank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "moe/cuda/permute/expert_rows.h"
#include "moe/cuda/router/router_logits.h"
#include "moe/cuda/router/select_experts.h"

namespace switchyard::cuda {

// Maximum number of tokens. It is limited because a single block computes the order.
constexpr int64_t kMaxTokensToOrder = 512;
// Maximum number of a token's logits. With more, the registers of a lane would not suffice.
constexpr int kMaxLogitsToOrder = 512;

// The results equal those of SelectExpertsOnDevice followed by OrderRows, bit for bit. `order`
// reads the ids that `choice` writes; it must have one segment in which all rows are valid.
// `arrived`: one integer on the device, zero before the first call; every call resets it to zero.
// Returns cudaErrorInvalidValue for unsupported parameters.
cudaError_t SelectAndOrder(const SelectExpertsParams& choice, const RowOrderParams& order,
                           uint32_t* arrived, const PdlStream& chain);

// Router logits, expert selection and row order in one kernel, for very few tokens whose rows stay
// on this rank.

constexpr int64_t kMaxTokensToRoute = 16;

// Whether RouteFewTokens supports the sizes: at most kMaxTokensToRoute tokens, which have at most
// order::kFewSlots slots (row_order.cuh), and bfloat16 router weights. The kernel needs
// thread-block clusters, so `chain` must have early launch, which only Hopper GPUs support.
bool RoutesFewTokens(const RouterLogitsParams& logits, int top_k, const PdlStream& chain);
// The results equal those of RouterLogits followed by SelectAndOrder, bit for bit, but the logits
// are not written. `logits.y` and `choice.logits` are ignored. Returns cudaErrorInvalidValue for
// unsupported parameters.
cudaError_t RouteFewTokens(const RouterLogitsParams& logits, const SelectExpertsParams& choice,
                           const RowOrderParams& order, const PdlStream& chain);

}  // namespace switchyard::cuda
