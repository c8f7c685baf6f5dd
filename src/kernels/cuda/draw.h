#pragma once

#include <cuda_runtime_api.h>

#include "kernels/draw_params.h"

namespace switchyard::cuda {

// A block a row. Sums are taken in one order, whatever the rows: ranks that hold the same logits
// draw the same token.
cudaError_t Draw(const kernels::DrawParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
