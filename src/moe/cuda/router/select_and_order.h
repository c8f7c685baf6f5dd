// Fused expert selection and row order by expert in one kernel, for few tokens whose rows stay on
// this rank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/stream_chain.h"
#include "moe/cuda/permute/row_order.h"
#include "moe/cuda/router/select_experts.h"

namespace switchyard::cuda {

// Maximum number of tokens. It is limited because a single block computes the order.
constexpr int64_t kMaxTokensToOrder = 512;

// The results equal those of SelectExpertsOnDevice followed by OrderRows, bit for bit. `order`
// reads the ids that `choice` writes; it must have one segment in which all rows are valid.
// `arrived`: one integer on the device, zero before the first call; every call resets it to zero.
// Returns cudaErrorInvalidValue for unsupported parameters.
cudaError_t SelectAndOrder(const SelectExpertsParams& choice, const RowOrderParams& order,
                           uint32_t* arrived, const PdlStream& chain);

}  // namespace switchyard::cuda
