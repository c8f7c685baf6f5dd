// The router's choice and the order of rows by expert in one kernel, for few tokens whose rows stay
// on this rank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/stream_chain.h"
#include "moe/cuda/row_order.h"
#include "moe/cuda/select_experts.h"

namespace switchyard::cuda {

// Most tokens: the order is made by one block.
constexpr int64_t kMaxTokensToOrder = 512;

// SelectExpertsOnDevice and then OrderRows, to the same bits. `order` reads the ids that `choice`
// writes: one segment, all of whose rows count. `arrived`: one integer on the device, zero before
// the first call and left so by every one. cudaErrorInvalidValue for what it does not take.
cudaError_t SelectAndOrder(const SelectExpertsParams& choice, const RowOrderParams& order,
                           uint32_t* arrived, const PdlStream& chain);

}  // namespace switchyard::cuda
