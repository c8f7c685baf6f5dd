#pragma once

#include <cuda_runtime_api.h>

#include "kernels/best_tokens.h"
#include "kernels/sample_params.h"

namespace switchyard::cuda {

// Samples a token for each row (semantics: kernels/sample_params.h); enqueues on `stream`. The
// reduction order does not depend on the batch: ranks with the same logits sample the same token.
cudaError_t SampleTokens(const kernels::SampleParams& p, cudaStream_t stream);

// Finds the best tokens of each row (semantics: kernels/best_tokens.h); enqueues on `stream`. The
// bits of a row do not depend on the batch. cudaErrorInvalidValue: `vocab` or `count` is out of
// range.
cudaError_t SelectBestTokens(const kernels::BestTokensParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
